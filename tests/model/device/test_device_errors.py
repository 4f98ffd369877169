"""Which errors are a device's, and not those of a row that was computed."""

import pytest
import torch

from chairlift.model.device.device_errors import is_of_device, is_out_of_memory

WITHOUT_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.mark.parametrize("error", WITHOUT_MEMORY, ids=lambda error: str(error)[:30])
def test_libraries_name_missing_memory_in_their_own_ways(error: Exception) -> None:
    assert is_out_of_memory(error) and is_of_device(error)


def test_a_failed_device_lacks_no_memory_and_an_error_of_a_row_is_neither() -> None:
    failed = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert is_of_device(failed) and not is_out_of_memory(failed)
    for error in (RuntimeError("shapes differ"), ValueError("CUDA error: out of memory"), ZeroDivisionError()):
        assert not is_of_device(error) and not is_out_of_memory(error)
