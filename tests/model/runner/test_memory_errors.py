"""MemoryErrors: which errors of torch become MemoryError, and what is freed before."""

import weakref

import pytest
import torch

from chairlift.model.runner.memory_errors import MemoryErrors

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def allocate_and_fail(held: list[weakref.ref[torch.Tensor]], error: Exception) -> None:
    activations = torch.zeros(4)
    held.append(weakref.ref(activations))
    raise error


def test_what_the_failed_step_held_is_freed_before_the_cached_memory_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    freed: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(held[0]() is None))
    with pytest.raises(MemoryError, match=r"^CUDA out of memory\. Tried 2 GiB$"), MemoryErrors(CUDA):
        allocate_and_fail(held, torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB\nstack"))
    assert freed == [True]


def test_a_cpu_without_memory_raises_memory_error_and_touches_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("a device was used"))
    with pytest.raises(MemoryError, match="DefaultCPUAllocator"), MemoryErrors(CPU):
        torch.empty(2**60, dtype=torch.uint8)


@pytest.mark.parametrize("error", [RuntimeError("kernel"), ValueError("shape"), MemoryError("native")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, MemoryErrors(CUDA):
        raise error
    assert caught.value is error


def test_without_an_error_nothing_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("memory was freed"))
    with MemoryErrors(CUDA):
        pass
