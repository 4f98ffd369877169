"""The kernels for ARM, compiled for it and run in qemu: every operation against float64.

Results of int8 are compared with the portable kernels of this processor.
"""

import fcntl
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.backends.native_state_layers import dense_state
from chairlift.model.config.state_layers import GatedDeltaNetConfig, Mamba2Config, StateLayerConfig
from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.kernels.cpu import compile as compiling
from chairlift.model.kernels.cpu.weight_kinds import BLOCK_KINDS, DTYPES, KINDS
from chairlift.model.layers.gated_delta_net import GatedDeltaNet
from chairlift.model.layers.linear_and_rms_norm import Linear
from chairlift.model.layers.mamba2 import Mamba2
from support_native import blocks, linear, need_native, packed, row_dtype, whole_rows
from support_services_processes import require_service
from support_state_layers import Chunk, make_cache, random_layer, run_step, torch_run

MULTIPLY, ATTEND, RMS_NORM, ROTATE_AND_CACHE, EMBED, SCORE, MULTIPLY_BLOCKS, RUN_STATES = range(8)
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


Result = tuple[torch.dtype, tuple[int, ...]]
"""Dtype and shape of what an operation writes."""


@dataclass
class Operations:
    """Operations for one run of the program, and the numbers that it returns for each."""

    program: Path
    name: str
    threads: int = 2
    _input: list[bytes] = field(default_factory=list)
    _results: list[Result] = field(default_factory=list)

    def add(self, operation: int, fields: Sequence[int], data: Sequence[Tensor], *results: Result) -> None:
        """Add an operation with its fields, its data, and the results that it writes."""
        padded = [operation, *fields, *[0] * (9 - len(fields))]
        self._input.append(np.array(padded, np.int32).tobytes() + b"".join(map(_bytes, data)))
        self._results += results

    def multiply(self, x: Tensor, weight: Tensor, kind: int, *, is_gated: bool = False) -> None:
        """Multiply rows x [T, I] by a weight [O, I], as support_native.linear does."""
        dtype, (outputs, inputs) = row_dtype(kind), weight.shape
        packed = -(-outputs // 32) * 32 if is_gated else outputs
        columns = -(-packed // 64) * (32 if is_gated else 64)
        fields = (kind, dtype == torch.float32, is_gated, len(x), inputs, outputs)
        data = (weight.to(DTYPES.get(kind, dtype)), x.to(dtype))
        self.add(MULTIPLY, fields, data, (dtype, (len(x), columns)))

    def multiply_blocks(self, x: Tensor, weight: BlockRows) -> None:
        """Multiply rows x [T, I] of bfloat16 by a weight in blocks."""
        (outputs, inputs), rows = weight.shape, torch.from_numpy(weight.rows)
        fields = (BLOCK_KINDS[weight.type.name], len(x), inputs, outputs, rows.shape[1])
        result = torch.bfloat16, (len(x), -(-outputs // 64) * 64)
        self.add(MULTIPLY_BLOCKS, fields, (rows, x.bfloat16()), result)

    def run(self) -> list[Tensor]:
        """Run all operations; return their results in float64."""
        command = [EMULATOR, str(self.program), self.name, str(self.threads)]
        output = subprocess.run(command, input=b"".join(self._input), capture_output=True, check=True).stdout
        found, at = [], 0
        for dtype, shape in self._results:
            size = int(np.prod(shape)) * dtype.itemsize
            found.append(torch.frombuffer(bytearray(output[at : at + size]), dtype=dtype).view(shape).double())
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
    products, gated = [each[:, : len(weight)] for each in products], gated[:, : len(weight) // 2]
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


@pytest.mark.parametrize("name", SETS)
def test_products_with_blocks_are_those_of_this_processor(name: str, program: Path) -> None:
    on, expected = Operations(program, name), []
    for kind, number in BLOCK_KINDS.items():
        weight = blocks(kind, 70, 768, seed=number)
        for count in (1, 4, 13):
            x = whole_rows(count, 768, seed=number)
            on.multiply_blocks(x, weight)
            expected.append(linear("portable", x, packed(weight), number).double())
    for found, exact in zip(on.run(), expected, strict=True):
        assert (found[:, :70] - exact).norm() <= ROUNDING[torch.bfloat16] * exact.norm()


@pytest.mark.parametrize("kind", ["int8", "int8-channel"])
@pytest.mark.parametrize("name", SETS)
def test_the_largest_int8_values_overflow_nothing(name: str, kind: str, program: Path) -> None:
    dice = torch.Generator().manual_seed(1)
    x, weight = (torch.randint(0, 2, (count, 160), generator=dice) * 2.0 - 1.0 for count in (7, 80))
    x[0], weight[0] = 1.0, -1.0
    on = Operations(program, name)
    on.multiply(x, weight, KINDS[kind])
    found = on.run()[0][:, : len(weight)]
    assert torch.allclose(found, (x @ weight.T).double(), rtol=0.0, atol=0.6) and found[0, 0] < -159


@dataclass(frozen=True)
class Shape:
    """Attention of the last TOKENS of a sequence."""

    kv_heads: int
    shared: int
    dim: int
    length: int
    window: int = 0
    softcap: int = 0
    has_sinks: bool = False

    def exact(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor) -> Tensor:
        """Return the attention in float64, [TOKENS, heads, dim]."""
        places = torch.arange(self.length), torch.arange(self.length - TOKENS, self.length)[:, None]
        hidden = (places[0] > places[1]) | (places[0] <= places[1] - (self.window or self.length))
        heads = query.double().view(TOKENS, self.kv_heads, self.shared, self.dim)
        scores = torch.einsum("qhsd,nhd->hsqn", heads, key.double()) * 0.2
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = scores.masked_fill(hidden, -torch.inf)
        if self.has_sinks:
            own = sinks.double().view(self.kv_heads, self.shared, 1, 1).expand(-1, -1, TOKENS, 1)
            scores = torch.cat((scores, own), -1)
        weights = scores.softmax(-1)[..., : self.length]
        return torch.einsum("hsqn,nhd->qhsd", weights, value.double()).reshape(query.shape)


TOKENS = 30
SHAPES = [
    *(Shape(kv_heads, shared, dim, length, window)
      for kv_heads, shared, dim in ((1, 1, 16), (2, 3, 80), (1, 8, 64))
      for length, window in ((37, 0), (600, 0), (600, 100))),
    Shape(2, 2, 32, 300, softcap=5), Shape(2, 4, 32, 300, has_sinks=True),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SETS)
def test_attention_is_that_of_float64_and_the_same_in_every_chunk(
    name: str, dtype: torch.dtype, program: Path
) -> None:  # fmt: skip
    on, tensors = Operations(program, name), []
    for shape in SHAPES:
        heads, length, dim = shape.kv_heads * shape.shared, shape.length, shape.dim
        key, value = (numbers(length, shape.kv_heads, dim, seed=dim + index).to(dtype) for index in range(2))
        query, sinks = numbers(TOKENS, heads, dim, seed=dim + 2).to(dtype), numbers(heads, seed=7)
        tensors.append((query, key, value, sinks))
        for count, end in ((TOKENS, length), (1, length), (TOKENS - 1, length - 1)):
            chunk = query[TOKENS - (length - end) - count : TOKENS - (length - end)]
            fields = (
                dtype == torch.float32, shape.kv_heads, heads, dim, end, count, shape.window, shape.softcap,
                shape.has_sinks,
            )  # fmt: skip
            data = (key[:end], value[:end], chunk, *([sinks] if shape.has_sinks else []))
            on.add(ATTEND, fields, data, (dtype, tuple(chunk.shape)))
    found = on.run()
    for shape, inputs, index in zip(SHAPES, tensors, range(0, len(found), 3), strict=True):
        whole, last, others = found[index : index + 3]
        assert torch.equal(whole[-1:], last) and torch.equal(whole[:-1], others)
        exact = shape.exact(*inputs)
        assert (whole - exact).abs().max() <= (2e-2 if dtype == torch.bfloat16 else 2e-6) * exact.abs().max(), shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SETS)
def test_queries_and_keys_are_normed_and_rotated_and_the_cache_has_them(
    name: str, dtype: torch.dtype, program: Path
) -> None:  # fmt: skip
    kv_heads, heads, dim, tokens = 2, 3, 48, 21
    on, rows = Operations(program, name), numbers(tokens, heads + 2 * kv_heads, dim, seed=1)
    factors, angles = numbers(heads + kv_heads, dim, seed=2), numbers(tokens, dim // 2, seed=3)
    cached = 32, kv_heads, dim
    on.add(
        ROTATE_AND_CACHE, (dtype == torch.float32, kv_heads, heads, dim, tokens),
        (rows, factors, angles.cos(), angles.sin()), (dtype, (tokens, heads, dim)), (dtype, cached), (dtype, cached),
    )  # fmt: skip
    queries, keys, values = on.run()
    per_word = 4 // dtype.itemsize
    keys = keys.view(2, kv_heads, dim // per_word, 16, per_word).permute(0, 3, 1, 2, 4).reshape(cached)[:tokens]
    values = values.view(2, kv_heads, 16 // per_word, dim, per_word).permute(0, 2, 4, 1, 3).reshape(cached)[:tokens]
    normed = functional.rms_norm(rows[:, : heads + kv_heads].double(), (dim,), None, 1e-6) * factors.double()
    cos, sin = (each.double()[:, None] for each in (angles.cos(), angles.sin()))
    left, right = normed.chunk(2, -1)
    exact = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
    for found, expected in (
        (queries, exact[:, :heads]),
        (keys, exact[:, heads:]),
        (values, rows[:, -kv_heads:].double()),
    ):
        assert (found - expected).norm() <= ROUNDING[dtype] * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", SETS)
def test_rows_of_a_table_are_looked_up(name: str, dtype: torch.dtype, program: Path) -> None:
    kind = next(kind for kind, each in DTYPES.items() if each == dtype)
    on, table, ids = Operations(program, name), numbers(50, 37, seed=1).to(dtype), torch.tensor([49, 0, 7, 7])
    on.add(EMBED, (kind, *table.shape, len(ids)), (table, ids), (torch.float32, (len(ids), 37)))
    (found,) = on.run()
    assert torch.equal(found, 2 * table[ids].double())


@pytest.mark.parametrize("name", SETS)
def test_the_largest_logits_and_their_sums(name: str, program: Path) -> None:
    on, logits = Operations(program, name), 4 * numbers(3, 1003, seed=1) + torch.arange(1003) * 1e-4  # no two are equal
    on.add(
        SCORE, (3, 1003, 9), (logits,), (torch.float32, (3, 9)), (torch.int64, (3, 9)), (torch.float64, (3,))
    )  # fmt: skip
    values, ids, sums = on.run()
    expected = logits.topk(9)
    assert torch.equal(values, expected.values.double()) and torch.equal(ids.long(), expected.indices)
    assert torch.allclose(sums + values[:, 0], logits.double().logsumexp(-1), rtol=1e-12)  # of differences


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SETS)
def test_norms_are_those_of_float64(name: str, dtype: torch.dtype, program: Path) -> None:
    on, x, factors = Operations(program, name, threads=1), numbers(9, 83, seed=1).to(dtype), numbers(83, seed=2)
    on.add(RMS_NORM, (dtype == torch.float32, *x.shape), (x, factors), (dtype, tuple(x.shape)))
    (found,) = on.run()
    exact = functional.rms_norm(x.double(), (83,), factors.double(), 1e-6)
    assert (found - exact).norm() <= ROUNDING[dtype] * exact.norm()


@pytest.mark.parametrize("kind", ["delta rule", "state space"])
@pytest.mark.parametrize("name", SETS)
def test_states_are_those_of_float64_and_the_same_however_a_prompt_is_cut(
    name: str, kind: str, program: Path
) -> None:  # fmt: skip
    """The layer's projections are the identity."""
    tokens, is_delta = 37, kind == "delta rule"
    if is_delta:
        config: StateLayerConfig = GatedDeltaNetConfig(num_key_heads=2, num_value_heads=4, key_dim=32, value_dim=48)
        key_heads, heads, key_dim, value_dim = 2, 4, 32, 48
    else:
        config = Mamba2Config(num_heads=6, head_dim=16, state_size=32, conv_bias=False, max_dt=1.0, norm_eps=1e-6)
        key_heads, heads, key_dim, value_dim = 1, 6, 32, 16
    layer = random_layer(config, torch.float64)
    assert isinstance(layer, GatedDeltaNet | Mamba2)
    projected, values = layer.projection.weight.shape[0], heads * value_dim
    eye = [Linear(torch.eye(width, dtype=torch.float64), None, {"eye": width}) for width in (projected, values)]
    layer = replace(layer, projection=eye[0], output=eye[1])
    x = numbers(tokens, projected, seed=8)
    skips = layer.skip if isinstance(layer, Mamba2) else torch.zeros(heads)
    norm = layer.norm.weight.expand(values // layer.norm.weight.shape[1], -1).reshape(-1)
    data = [x, layer.convolution.weight, layer.decay_rate, layer.dt_bias, skips, norm]
    shapes = (tokens, values), (2, 3, config.channels), (2, heads, key_dim, value_dim)
    on = Operations(program, name)
    for cut in (1, 2, 5, 33):
        fields = (0 if is_delta else 1, key_heads, heads, key_dim, value_dim, tokens, cut)
        on.add(RUN_STATES, fields, [each.float() for each in data], *((torch.float32, shape) for shape in shapes))
    cache = make_cache(config, torch.float64, num_slots=1, num_checkpoints=1)
    (outputs,) = run_step(torch_run(layer), cache, [Chunk(0, 0, x.double(), ((1, 0),))])
    found, exact = on.run(), [outputs, *cache.layers[0].tensors()]
    for index in range(0, len(found), 3):
        for part, first, expected in zip(found[index : index + 3], found[:3], exact, strict=True):
            assert torch.equal(part, first)
            dense = dense_state(part) if part.ndim == 4 else part
            assert (dense - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_the_sets_of_an_arm_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(compiling, "CPU_INFO", tmp_path / "cpuinfo")
    assert compiling.processor_sets() == SETS, "the file is missing: the processor is unknown"
    for features, sets in (("fp asimd asimddp", SETS), ("fp asimd", SETS[1:])):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nFeatures\t: {features}\nCPU implementer\t: 0x41\n")
        assert compiling.processor_sets() == sets
