"""Peaks: how fast this machine multiplies (torch's products, in the layers' shapes) and reads, just now.

    python -m cpu_roofline.peaks THREADS INPUTSxOUTPUTS ...

prints GFLOP/s of products of bfloat16 matrices, one of each shape, in a process of its own with so many threads.
"""

import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from chairlift.bench.offline.subprocess_run import environ_with
from chairlift.model.kernels.cpu.compile import find_compiler
from chairlift.model.runner.host_memory import huge_pages

ROWS = 256
SECONDS = 0.25
"""For each shape."""

READ_BYTES = 512 * 2**20
SOURCE = Path(__file__).with_name("memory_read.cpp")
TOOLS = Path(__file__).parents[1]


def products(cpus: Sequence[int], shapes: Sequence[tuple[int, int]]) -> float:
    """Return GFLOP/s of the fastest product [256, I] x [I, O] of these shapes."""
    words = [f"{inputs}x{outputs}" for inputs, outputs in shapes]
    command = [sys.executable, "-P", "-m", "cpu_roofline.peaks", str(len(cpus)), *words]
    said = subprocess.run(command, stdout=subprocess.PIPE, env=environ_with(TOOLS), check=True).stdout
    found: float = max(json.loads(said))
    return found


class Reader:
    """Reads memory as fast as this machine can, a thread on each processor.

    Owns: half a gigabyte on huge pages, to be read where nothing else is given.
    """

    def __init__(self, folder: Path, cpus: Sequence[int]) -> None:
        """Compile it for this machine into a folder. Raises CannotCompile or CalledProcessError."""
        library = folder / "libreading.so"
        flags = ("-O3", "-march=native", "-std=c++17", "-pthread", "-shared", "-fPIC")
        subprocess.run([*find_compiler(), *flags, str(SOURCE), "-o", str(library)], check=True)
        self._read = ctypes.CDLL(str(library)).read_seconds
        self._read.restype = ctypes.c_double
        self._read.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int), ctypes.c_int)
        self._cpus = (ctypes.c_int * len(cpus))(*cpus)
        self._memory = huge_pages(READ_BYTES).fill_(1)

    def seconds(self, tensor: Tensor) -> float:
        """Return how long a contiguous tensor takes."""
        found: float = self._read(
            tensor.data_ptr(), tensor.numel() * tensor.element_size(), self._cpus, len(self._cpus)
        )
        return found

    def rate(self) -> float:
        """Return GB/s of memory of its own."""
        return READ_BYTES / self.seconds(self._memory) / 1e9


def main(words: Sequence[str]) -> int:
    """Be the process of products(): multiply, and print what each shape reached."""
    torch.set_num_threads(int(words[0]))
    found = []
    for word in words[1:]:
        inputs, outputs = map(int, word.split("x"))
        left, right = (torch.randn(shape).bfloat16() for shape in ((ROWS, inputs), (inputs, outputs)))
        times: list[float] = []
        while sum(times) < SECONDS:
            began = time.perf_counter()
            torch.mm(left, right)
            times.append(time.perf_counter() - began)
        found.append(2 * ROWS * inputs * outputs / statistics.median(times) / 1e9)
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
