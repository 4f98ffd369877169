"""peak_gflops(), Reader: measure this machine's peak speed of matrix products and of memory reads.

    python -m cpu_roofline.hardware_peaks DTYPE NUM_THREADS INPUTSxOUTPUTS ...

runs torch's matrix products of a dtype, one for each shape, in a process with its own number of threads. It prints a
JSON list of GFLOP/s.
"""

import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from chairlift.bench.offline.subprocess_run import environ_with
from chairlift.model.device.dtypes import torch_dtype
from chairlift.model.device.huge_page_tensors import huge_pages
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.compile import find_compiler
from chairlift.model.kernels.cpu.instruction_sets import INSTRUCTION_SET_VARIABLE, selected_instruction_set
from chairlift.model.kernels.cpu.weight_kinds import KINDS

NUM_ROWS = 256
"""Rows of the left matrix of each product."""

SECONDS_PER_SHAPE = 0.25
"""How long the product of each shape is repeated."""

READ_BYTES = 512 * 2**20
"""Bytes of the memory that Reader.rate() reads."""

SOURCE = Path(__file__).with_name("memory_read.cpp")
TOOLS = Path(__file__).parents[1]


def peak_gflops(cpus: Sequence[int], shapes: Sequence[tuple[int, int]], dtype: str) -> float:
    """Return the peak GFLOP/s of products in a dtype: torch's, or that of the native kernels' instructions if higher.

    Only that of the instructions counts where an instruction set is forced, of which torch would have more.
    """
    selected = selected_instruction_set()
    own: float = 2e-9 * len(cpus) * library.load().peak_rate(selected.encode(), KINDS[dtype])
    return own if INSTRUCTION_SET_VARIABLE in os.environ else max(own, products(cpus, shapes, dtype))


def products(cpus: Sequence[int], shapes: Sequence[tuple[int, int]], dtype: str) -> float:
    """Return the highest GFLOP/s of torch's products [256, I] x [I, O] for the shapes (I, O)."""
    arguments = [f"{inputs}x{outputs}" for inputs, outputs in shapes]
    command = [sys.executable, "-P", "-m", "cpu_roofline.hardware_peaks", dtype, str(len(cpus)), *arguments]
    output = subprocess.run(command, stdout=subprocess.PIPE, env=environ_with(TOOLS), check=True).stdout
    highest: float = max(json.loads(output))
    return highest


class Reader:
    """Reads memory with one thread on each CPU, to measure the memory bandwidth.

    It owns READ_BYTES of memory on huge pages for rate().
    """

    def __init__(self, folder: Path, cpus: Sequence[int]) -> None:
        """Compile memory_read.cpp for this machine into a folder. Raises CompileFailed or CalledProcessError."""
        library = folder / "libmemory_read.so"
        flags = ("-O3", "-march=native", "-std=c++17", "-pthread", "-shared", "-fPIC")
        subprocess.run([*find_compiler(), *flags, str(SOURCE), "-o", str(library)], check=True)
        self._read = ctypes.CDLL(str(library)).read_seconds
        self._read.restype = ctypes.c_double
        self._read.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int), ctypes.c_int)
        self._cpus = (ctypes.c_int * len(cpus))(*cpus)
        self._memory = huge_pages(READ_BYTES).fill_(1)

    def seconds(self, tensor: Tensor) -> float:
        """Return the seconds that reading a contiguous tensor takes."""
        seconds: float = self._read(
            tensor.data_ptr(), tensor.numel() * tensor.element_size(), self._cpus, len(self._cpus)
        )
        return seconds

    def rate(self) -> float:
        """Return the GB/s of reading its own memory."""
        return READ_BYTES / self.seconds(self._memory) / 1e9


def main(args: Sequence[str]) -> int:
    """Run the products and print the GFLOP/s of each shape; products() starts this in a subprocess."""
    dtype, num_threads, *shapes = args
    torch.set_num_threads(int(num_threads))
    results = []
    for each in shapes:
        inputs, outputs = map(int, each.split("x"))
        left, right = (torch.randn(shape).to(torch_dtype(dtype)) for shape in ((NUM_ROWS, inputs), (inputs, outputs)))
        times: list[float] = []
        while sum(times) < SECONDS_PER_SHAPE:
            started_at = time.perf_counter()
            torch.mm(left, right)
            times.append(time.perf_counter() - started_at)
        results.append(2 * NUM_ROWS * inputs * outputs / statistics.median(times) / 1e9)
    sys.stdout.write(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
