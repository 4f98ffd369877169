"""StepErrors: translates torch's errors in a step: no memory to MemoryError, a device that failed to EngineDead."""

import traceback
from types import TracebackType

import torch

from chairlift.core.errors import EngineDead

CPU_ALLOCATOR = "DefaultCPUAllocator"
"""In the text of the RuntimeError with which torch reports that the host has no memory."""


class StepErrors:
    """A context in which torch.OutOfMemoryError and its counterpart on a CPU become MemoryError.

    torch.AcceleratorError becomes EngineDead: after an error of a kernel no call of CUDA succeeds in this process. The
    tensors of the failed step are freed first, and on CUDA the blocks that torch's allocator keeps: the next step
    may need other sizes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None:
        """Nothing is held."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the error that takes the place of torch's, if one does."""
        if isinstance(error, torch.AcceleratorError):
            message = str(error).partition("\n")[0]
            raise EngineDead(f"{self._device} failed and cannot be used by this process any more: {message}") from error
        if not isinstance(error, RuntimeError) or not _is_out_of_memory(error):
            return
        traceback.clear_frames(trace)  # they refer to the tensors of the failed step
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        raise MemoryError(str(error).partition("\n")[0]) from None


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or CPU_ALLOCATOR in str(error)
