"""StepErrors: which errors of torch become MemoryError or EngineDead, and what is freed before."""

import weakref

import pytest
import torch

from chairlift.core.errors import EngineDead
from chairlift.model.runner.step_errors import StepErrors

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
    with pytest.raises(MemoryError, match=r"^CUDA out of memory\. Tried 2 GiB$"), StepErrors(CUDA):
        allocate_and_fail(held, torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB\nstack"))
    assert freed == [True]


def test_a_cpu_without_memory_raises_memory_error_and_touches_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("a device was used"))
    with pytest.raises(MemoryError, match="DefaultCPUAllocator"), StepErrors(CPU):
        torch.empty(2**60, dtype=torch.uint8)


@pytest.mark.parametrize("error", [RuntimeError("kernel"), ValueError("shape"), MemoryError("native")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, StepErrors(CUDA):
        raise error
    assert caught.value is error


def test_without_an_error_nothing_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("memory was freed"))
    with StepErrors(CUDA):
        pass


def test_after_an_error_of_a_kernel_the_engine_cannot_go_on() -> None:
    with pytest.raises(EngineDead, match=r"^cuda failed and cannot .*: an illegal memory access$"), StepErrors(CUDA):
        raise torch.AcceleratorError("an illegal memory access\nCompile with TORCH_USE_CUDA_DSA")
