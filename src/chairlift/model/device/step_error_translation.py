"""StepErrors: translates torch's errors in a step: no memory to MemoryError, a device that failed to EngineDead."""

import traceback
from types import TracebackType

import torch

from chairlift.core.errors import EngineDead
from chairlift.model.device.device_errors import is_out_of_memory


class StepErrors:
    """A context in which torch.OutOfMemoryError and its counterparts of other libraries become MemoryError.

    The tensors of the failed step are freed first, and on CUDA the blocks that torch's allocator keeps: the next step
    may need other sizes.

    torch.AcceleratorError becomes EngineDead: after an error of a kernel no call of CUDA succeeds in this process. The
    next library that calls CUDA finds it, and Triton and cuBLAS raise a RuntimeError of their own. So after any
    RuntimeError the device is waited for, which raises if it has failed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None:
        """Nothing is held."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the error that takes the place of torch's, if one does."""
        if not isinstance(error, RuntimeError):
            return
        message, has_no_memory = str(error).partition("\n")[0], is_out_of_memory(error)
        if has_no_memory:
            traceback.clear_frames(trace)  # they refer to the tensors of the failed step
        elif isinstance(error, torch.AcceleratorError):
            raise self._dead(error) from error
        if self._device.type == "cuda":
            try:
                if has_no_memory:
                    torch.cuda.empty_cache()
                torch.cuda.synchronize(self._device)
            except RuntimeError as failure:
                raise self._dead(failure) from error
        if has_no_memory:
            raise MemoryError(message) from None

    def _dead(self, failure: RuntimeError) -> EngineDead:
        message = str(failure).partition("\n")[0]
        return EngineDead(f"{self._device} failed and cannot be used by this process any more: {message}")
