"""Peaks: how fast this machine multiplies (torch's products, in the layers' shapes) and reads, just now.

    python -m cpu_floors.peaks THREADS ROWS INPUTSxOUTPUTS ...

prints GFLOP/s of the fastest product of bfloat16 matrices, in a process of its own with so many threads.
"""

import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from chairlift.model.kernels.cpu.compile import find_compiler

ROWS = 256
SECONDS = 0.25
"""For each shape."""

READ_MEGABYTES, READ_ROUNDS = 1024, 5
SOURCE = Path(__file__).with_name("reading.cpp")


def products(cpus: Sequence[int], shapes: Sequence[tuple[int, int]]) -> float:
    """Return GFLOP/s of the fastest product [256, I] x [I, O] of these shapes."""
    words = [f"{inputs}x{outputs}" for inputs, outputs in shapes]
    command = [sys.executable, "-P", "-m", "cpu_floors.peaks", str(len(cpus)), *words]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    found: float = max(json.loads(said))
    return found


def compiled(folder: Path) -> Path:
    """Compile the reader for this machine. Raises CannotCompile or CalledProcessError."""
    program = folder / "reading"
    command = [*find_compiler(), "-O3", "-march=native", "-std=c++17", "-pthread", str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def reading(program: Path, cpus: Sequence[int]) -> float:
    """Return GB/s of reading a gigabyte, a thread on each processor; the median of some rounds."""
    where = ",".join(map(str, cpus))
    said = subprocess.run(
        [str(program), where, str(READ_MEGABYTES), str(READ_ROUNDS)], stdout=subprocess.PIPE, check=True, text=True
    )
    return statistics.median(map(float, said.stdout.split()))


def main(words: Sequence[str]) -> int:
    """Be the process of products(): multiply, and print what each shape reached."""
    torch = importlib.import_module("torch")
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
