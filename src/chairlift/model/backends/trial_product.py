"""trial_product: how fast the native kernels multiply here, as a share of what the processor can do."""

import ctypes
import time
from dataclasses import dataclass

import torch

from chairlift.model.device.dtypes import NATIVE_COMPUTE_DTYPES, torch_dtype
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.kernel_cpus import ANYWHERE
from chairlift.model.kernels.cpu.packing import Packer
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.kernels.cpu.weight_kinds import BLOCK_KINDS, KINDS

ROWS, INPUTS, OUTPUTS = 64, 1024, 1024


@dataclass(frozen=True, slots=True)
class TrialProduct:
    """A product of 64 rows by a weight of 1,024 x 1,024 in one thread, by its processor time.

    Attributes:
        kind: that of the weight, one of KINDS or BLOCK_KINDS.
        rate: multiply-adds per second.
        peak: the same without memory accesses, by the instructions of the product.
    """

    kind: str
    rate: float
    peak: float

    def __str__(self) -> str:
        # A portable tile has one row: its few sums wait for each other where there is no memory access to wait for.
        share = f"{self.rate / self.peak:.0%}" if self.rate <= self.peak else "an unknown share"
        return f"{self.rate / 1e9:.0f} GMAC/s a thread, {share} of what its instructions can do"


def trial_product(kind: str, instruction_set: str, repeats: int) -> TrialProduct:
    """Multiply by a weight of a kind; the best of `repeats` products, some milliseconds together.

    Raises ConfigError without the library, and MemoryError.
    """
    native, number = library.load(), (BLOCK_KINDS | KINDS)[kind]
    dtype = torch_dtype(NATIVE_COMPUTE_DTYPES.get(kind, "bfloat16"))
    pool = ThreadPool((ANYWHERE,))
    try:
        weight = Packer(pool, number, dtype).allocate([(OUTPUTS, INPUTS)], [number], gated=False)
        rows, out = torch.zeros(ROWS, INPUTS, dtype=dtype), torch.empty(ROWS, OUTPUTS, dtype=dtype)

        def multiply() -> float:
            began = time.thread_time()
            code = native.multiply(
                pool.handle, instruction_set.encode(), ctypes.byref(weight.struct), None, False, 0, rows.data_ptr(),
                dtype == torch.float32, INPUTS, ROWS, out.data_ptr(), OUTPUTS,
            )  # fmt: skip
            if code < 0:
                raise MemoryError("no memory for a trial product")
            return max(time.thread_time() - began, 1e-9)

        seconds = min(multiply() for _ in range(repeats))
        return TrialProduct(kind, ROWS * INPUTS * OUTPUTS / seconds, native.peak_rate(instruction_set.encode(), number))
    finally:
        pool.close()
