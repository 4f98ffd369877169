"""The kernels for ARM, compiled for it and run in qemu: products, attention and norms against float64.

Results of int8 are compared with the portable kernels of this processor.
"""

import fcntl
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.kernels.cpu import compile as compiling
from chairlift.model.kernels.cpu.packing import DTYPES, KINDS
from support_native import linear, need_native, row_dtype
from support_services_processes import require_service

MULTIPLY, ATTEND, RMS_NORM = range(3)
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SETS = tuple(compiling.ARM_INSTRUCTION_SETS)
ROUNDING = {torch.bfloat16: 0.005, torch.float32: 1e-6}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the kernels and neon_main.cpp for ARM, once for all workers of xdist."""
    require_service(COMPILER)
    require_service(EMULATOR)
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "neon"
    folder.mkdir(exist_ok=True)
    target = folder / "kernels"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            compile_program(folder, target)
    return target


def compile_program(folder: Path, target: Path) -> None:
    """Compile the program in a folder; it is there as a whole or not at all."""
    main = Path(__file__).with_name("neon_main.cpp")
    common, sources = ("-std=c++20", "-O1", f"-I{compiling.SOURCES}"), []
    for name in compiling.COMMON_SOURCES:
        sources.append((compiling.SOURCES / name, (f'-DCHAIRLIFT_SETS="{" ".join(SETS)}"',)))
    for name, flags in compiling.ARM_INSTRUCTION_SETS.items():
        sources.append((compiling.SOURCES / "isa.cpp", (f"-DCHAIRLIFT_SET={name}", *flags)))
    objects = [str(folder / f"{index}.o") for index in range(len(sources))]
    running = [
        subprocess.Popen([COMPILER, *common, *flags, "-c", str(source), "-o", target])
        for (source, flags), target in zip(sources, objects, strict=True)
    ]
    assert [process.wait() for process in running] == [0] * len(running)
    linked = folder / "linked"
    subprocess.run([COMPILER, *common, "-static", "-pthread", str(main), *objects, "-o", str(linked)], check=True)
    linked.rename(target)


@dataclass
class Operations:
    """Operations for one run of the program, and the numbers that it returns for each."""

    program: Path
    name: str
    threads: int = 2
    _input: list[bytes] = field(default_factory=list)
    _results: list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)

    def add(
        self, operation: int, fields: Sequence[int], data: Sequence[Tensor], stored: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Add an operation; its result is `stored` numbers of the last tensor's dtype, of which `shape` counts."""
        padded = [operation, *fields, *[0] * (7 - len(fields))]
        self._input.append(np.array(padded, np.int32).tobytes() + b"".join(map(_bytes, data)))
        self._results.append((data[0].dtype if operation == RMS_NORM else data[-1].dtype, stored, shape))

    def multiply(self, x: Tensor, weight: Tensor, kind: int, *, is_gated: bool = False) -> None:
        """Multiply rows x [T, I] by a weight [O, I], as support_native.linear does."""
        dtype, (outputs, inputs) = row_dtype(kind), weight.shape
        width = outputs // 2 if is_gated else outputs
        packed = -(-outputs // 32) * 32 if is_gated else outputs
        columns = -(-packed // 64) * (32 if is_gated else 64)
        fields = (kind, dtype == torch.float32, is_gated, len(x), inputs, outputs)
        data = (weight.to(DTYPES.get(kind, dtype)), x.to(dtype))
        self.add(MULTIPLY, fields, data, (len(x), columns), (len(x), width))

    def run(self) -> list[Tensor]:
        """Run all operations; return their results in float64."""
        command = [EMULATOR, str(self.program), self.name, str(self.threads)]
        output = subprocess.run(command, input=b"".join(self._input), capture_output=True, check=True).stdout
        found, at = [], 0
        for dtype, stored, shape in self._results:
            size = int(np.prod(stored)) * dtype.itemsize
            numbers = torch.frombuffer(bytearray(output[at : at + size]), dtype=dtype).view(stored)
            found.append(numbers[tuple(slice(length) for length in shape)].double())
            at += size
        assert at == len(output)
        return found


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


@cache
def inputs_of_a_product(rows: int) -> tuple[Tensor, Tensor]:
    return numbers(rows, 577, seed=rows), numbers(130, 577, seed=99)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETS)
def test_products_are_those_of_float64_and_the_same_in_every_batch(name: str, kind: str, program: Path) -> None:
    need_native()
    number, counts = KINDS[kind], (1, 2, 3, 4, 5, 6, 7, 13, 64)
    on = Operations(program, name)
    x, weight = inputs_of_a_product(64)
    for count in counts:
        on.multiply(x[:count], weight, number)
    on.multiply(x[:5], weight, number, is_gated=True)
    *products, gated = on.run()
    whole, dtype = products[-1], row_dtype(number)
    assert all(torch.equal(product, whole[:count]) for product, count in zip(products, counts, strict=True))
    if number in DTYPES:
        exact = x.double() @ weight.double().T
        assert (whole - exact).norm() <= ROUNDING[dtype] * exact.norm()
        gate, up = (x[:5].double() @ weight.double().T).chunk(2, -1)
        assert (gated - functional.silu(gate) * up).norm() <= 2 * ROUNDING[dtype] * gated.norm()
    else:
        portable = linear("portable", x, weight, number).double()
        assert (whole - portable).norm() <= ROUNDING[dtype] * portable.norm()


@pytest.mark.parametrize("kind", ["int8", "int8-channel"])
@pytest.mark.parametrize("name", SETS)
def test_the_largest_int8_values_overflow_nothing(name: str, kind: str, program: Path) -> None:
    dice = torch.Generator().manual_seed(1)
    x, weight = (torch.randint(0, 2, (count, 160), generator=dice) * 2.0 - 1.0 for count in (7, 80))
    x[0], weight[0] = 1.0, -1.0
    on = Operations(program, name)
    on.multiply(x, weight, KINDS[kind])
    (found,) = on.run()
    assert torch.allclose(found, (x @ weight.T).double(), rtol=0.0, atol=0.6) and found[0, 0] < -159


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SETS)
def test_attention_is_that_of_float64_and_the_same_in_every_chunk(
    name: str, dtype: torch.dtype, program: Path
) -> None:  # fmt: skip
    on = Operations(program, name)
    shapes = [(kv, shared, dim, length, window) for kv, shared, dim in ((1, 1, 16), (2, 3, 80), (1, 8, 64))
              for length, window in ((37, 0), (600, 0), (600, 100))]  # fmt: skip
    tensors, tokens = [], 30
    for kv_heads, shared, dim, length, window in shapes:
        key, value = (numbers(length, kv_heads, dim, seed=dim + index).to(dtype) for index in range(2))
        query = numbers(tokens, kv_heads * shared, dim, seed=dim + 2).to(dtype)
        tensors.append((key, value, query))
        for count, end in ((tokens, length), (1, length), (tokens - 1, length - 1)):
            chunk = query[tokens - (length - end) - count : tokens - (length - end)]
            fields = (dtype == torch.float32, kv_heads, kv_heads * shared, dim, end, count, window)
            on.add(ATTEND, fields, (key[:end], value[:end], chunk), tuple(chunk.shape), tuple(chunk.shape))
    found = on.run()
    for (key, value, query), (kv_heads, _, _, length, window), index in zip(tensors, shapes, range(99), strict=False):
        whole, last, others = found[3 * index : 3 * index + 3]
        assert torch.equal(whole[-1:], last) and torch.equal(whole[:-1], others)
        places = torch.arange(length), torch.arange(length - tokens, length)[:, None]
        hidden = (places[0] > places[1]) | (places[0] <= places[1] - (window or length))
        heads = query.double().view(tokens, kv_heads, -1, query.shape[-1])
        scores = torch.einsum("qhsd,nhd->hsqn", heads, key.double()) * 0.2
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        exact = torch.einsum("hsqn,nhd->qhsd", weights, value.double()).reshape(whole.shape)
        assert (whole - exact).abs().max() <= (2e-2 if dtype == torch.bfloat16 else 2e-6) * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SETS)
def test_norms_are_those_of_float64(name: str, dtype: torch.dtype, program: Path) -> None:
    on, x, factors = Operations(program, name, threads=1), numbers(9, 83, seed=1).to(dtype), numbers(83, seed=2)
    on.add(RMS_NORM, (dtype == torch.float32, *x.shape), (x, factors), tuple(x.shape), tuple(x.shape))
    (found,) = on.run()
    exact = functional.rms_norm(x.double(), (83,), factors.double(), 1e-6)
    assert (found - exact).norm() <= ROUNDING[dtype] * exact.norm()


def test_the_sets_of_an_arm_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(compiling, "CPU_INFO", tmp_path / "cpuinfo")
    assert compiling.processor_sets() == SETS, "the file is missing: the processor is unknown"
    for features, sets in (("fp asimd asimddp", SETS), ("fp asimd", SETS[1:])):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nFeatures\t: {features}\nCPU implementer\t: 0x41\n")
        assert compiling.processor_sets() == sets
