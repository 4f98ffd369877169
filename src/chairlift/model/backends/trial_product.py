"""trial_products: how fast the native kernels multiply here, as a share of what the processor can do."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from chairlift.model.backends.native_linear_and_norm import NativeLinear
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.kernel_cpus import ANYWHERE
from chairlift.model.kernels.cpu.packing import KINDS, Packer
from chairlift.model.kernels.cpu.threads import ThreadPool

ROWS, INPUTS, OUTPUTS = 64, 1024, 1024
REPEATS = 10


@dataclass(frozen=True, slots=True)
class TrialProduct:
    """A product of 64 rows by a weight of 1,024 x 1,024 in one thread, by its processor time.

    Attributes:
        kind: that of the weight, one of packing.KINDS.
        rate: multiply-adds per second.
        peak: the same without memory accesses, by the instructions of the product.
    """

    kind: str
    rate: float
    peak: float


def trial_products(instruction_set: str) -> Iterator[TrialProduct]:
    """Multiply weights of each kind, some milliseconds each. Raises ConfigError without the library, MemoryError."""
    native = library.load()
    pool = ThreadPool((ANYWHERE,))
    try:
        weight = torch.zeros(OUTPUTS, INPUTS)
        for name, kind in KINDS.items():
            dtype = torch.float32 if kind in (library.FLOAT32, library.FLOAT16) else torch.bfloat16
            rows, packer = weight[:ROWS].to(dtype), Packer(pool, kind, dtype)
            linear = NativeLinear(weight, None, packer, instruction_set)
            seconds = min(_seconds(linear, rows) for _ in range(REPEATS))
            peak = native.peak_rate(instruction_set.encode(), kind)
            yield TrialProduct(name, ROWS * INPUTS * OUTPUTS / seconds, peak)
    finally:
        pool.close()


def _seconds(linear: NativeLinear, rows: torch.Tensor) -> float:
    began = time.thread_time()
    linear(rows)
    return max(time.thread_time() - began, 1e-9)
