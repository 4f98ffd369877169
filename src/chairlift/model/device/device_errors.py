"""is_out_of_memory, is_of_device: errors of a device or of the host, which no request has caused."""

import torch

CPU_ALLOCATOR = "DefaultCPUAllocator"
"""In the text of the RuntimeError with which torch reports that the host has no memory."""

OUT_OF_MEMORY = (
    CPU_ALLOCATOR, "CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "CUBLAS_STATUS_ALLOC_FAILED"
)  # fmt: skip
"""Texts of RuntimeErrors for memory that torch's allocator does not give: pinned memory, code of kernels, graphs."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether torch or another library got no memory of the host or of a device."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)


def is_of_device(error: Exception) -> bool:
    """Return whether an error says that memory is missing or that a device failed, whatever was computed."""
    return isinstance(error, torch.AcceleratorError) or is_out_of_memory(error)
