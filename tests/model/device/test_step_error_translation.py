"""StepErrors: which errors of torch become MemoryError or EngineDead, and what is freed before."""

import weakref

import pytest
import torch

from chairlift.core.errors import EngineDead
from chairlift.model.device.step_error_translation import StepErrors

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Stand in for a device that works, and return what was waited for."""
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    return waited


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


def test_after_an_error_of_a_kernel_the_engine_cannot_go_on(waits: list[torch.device]) -> None:
    with pytest.raises(EngineDead, match=r"^cuda failed and cannot .*: an illegal memory access$"), StepErrors(CUDA):
        raise torch.AcceleratorError("an illegal memory access\nCompile with TORCH_USE_CUDA_DSA")
    assert not waits


FAILED = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
        torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"),
    ],
    ids=["triton", "cublas", "memory"],
)
def test_a_device_that_failed_ends_the_engine_whichever_library_finds_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise torch.AcceleratorError(FAILED)

    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    with pytest.raises(EngineDead, match=f"^cuda failed and cannot .*: {FAILED}$"), StepErrors(CUDA):
        raise error
    monkeypatch.setattr(torch.cuda, "empty_cache", fails)
    with pytest.raises(EngineDead), StepErrors(CUDA):
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["pinned", "triton", "cublas"],
)
def test_memory_that_other_libraries_do_not_get_is_freed_for_them(
    error: Exception, waits: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(1))
    with pytest.raises(MemoryError), StepErrors(CUDA):
        raise error
    assert freed == [1] and waits == [CUDA]


def test_a_host_that_fails_waits_for_no_device(waits: list[torch.device]) -> None:
    with pytest.raises(RuntimeError, match="shape"), StepErrors(CPU):
        raise RuntimeError("shape")
    assert not waits
