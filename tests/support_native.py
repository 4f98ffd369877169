"""Helpers for tests of the native kernels: skip without a compiler, and run single operations on tensors."""

import ctypes
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.config.gguf_types import GGML_TYPES
from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.kernels.cpu import compile as compiling
from chairlift.model.kernels.cpu import instruction_sets as sets
from chairlift.model.kernels.cpu import kernel_structs, library
from chairlift.model.kernels.cpu.packing import PackedWeight, Packer, gated_rows, padded_inputs
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.kernels.cpu.weight_kinds import DTYPES
from support_gguf import random_blocks


def need_native() -> None:
    """Skip the test if there is no compiler. With a compiler, the kernels must be loadable."""
    try:
        library.load()
    except ConfigError:
        try:
            compiling.find_compiler()
        except compiling.CompileFailed:
            pytest.skip("no C++ compiler")
        raise


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that run here, for parametrize; only the portable one without a library."""
    try:
        return sets.instruction_sets()
    except ConfigError:
        return ("portable",)


TYPES = {kind.name: kind for kind in GGML_TYPES.values()}


@dataclass
class Operations:
    """A decoder of a few operations and buffers, for one test."""

    instruction_set: str
    threads: int = 2
    tensors: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        need_native()
        self.native = library.load()
        self.pool = get_thread_pool(self.threads)
        self.handle = self.native.decoder_new(self.pool.handle, self.instruction_set.encode())

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.native.decoder_free(self.handle)

    def buffer(self, kind: int, width: int, quantization: int = library.BFLOAT16) -> int:
        index: int = self.native.add_buffer(self.handle, kind, width, quantization)
        return index

    def rows(self, buffer: int, tokens: int, dtype: torch.dtype) -> Tensor:
        """Return a buffer as [tokens, stride]."""
        stride = ctypes.c_size_t()
        address = self.native.buffer(self.handle, buffer, ctypes.byref(stride))
        memory = (ctypes.c_uint8 * (tokens * stride.value)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).view(tokens, -1)

    def run(self, tokens: int, **fields: object) -> None:
        step = library.Step(num_tokens=tokens, **fields)
        assert self.native.run(self.handle, ctypes.byref(step)) == 0

    def keep(self, tensor: Tensor) -> int:
        """Keep a tensor alive as long as this object; return its address."""
        self.tensors.append(tensor)
        return tensor.data_ptr()


def row_dtype(kind: int) -> torch.dtype:
    """Return the dtype of the rows that tests multiply by weights of a kind."""
    return torch.float32 if kind in (library.FLOAT32, library.FLOAT16) else torch.bfloat16


def linear(
    instruction_set: str, x: Tensor, weight: Tensor | PackedWeight, kind: int, *, bias: Tensor | None = None,
    mode: int = library.STORE, activation: str = "silu", initial: Tensor | None = None, threads: int = 2,
) -> Tensor:  # fmt: skip
    """Multiply x [T, I] by a weight [O, I] with the kernels. With mode GATED, the weight is gates, then ups.

    Rows, and the result of GATED, are float32 for weights of float32 and float16, else bfloat16. Of a packed weight,
    `kind` is that of its first segment.
    """
    on = Operations(instruction_set, threads)
    dtype = row_dtype(kind)
    buffer_kind = library.F32 if dtype == torch.float32 else library.BF16
    gated = mode == library.GATED
    if isinstance(weight, PackedWeight):
        packed = weight
    else:
        packed, _ = Packer(on.pool, kind, dtype).pack(list(weight.chunk(2)) if gated else [weight], gated=gated)
    on.tensors.append(packed)
    outputs = len(weight) if isinstance(weight, Tensor) else sum(segment.outputs for segment in packed.segments)
    width = outputs // 2 if gated else outputs
    source = on.buffer(buffer_kind, x.shape[1])
    target = on.buffer(buffer_kind if gated else library.F32, width)
    inputs = source
    if kind not in DTYPES:
        inputs = on.buffer(library.QUANTIZED, padded_inputs(packed), kind)
        on.native.add_quantize(on.handle, source, inputs)
    padded_bias = None
    if bias is not None:
        rows = gated_rows(bias) if gated else bias
        *before, last = packed.segments
        columns = sum(segment.outputs for segment in before) + last.panels * library.PANEL
        padded_bias = on.keep(torch.nn.functional.pad(rows.float(), (0, columns - len(rows))))
    add_linear(on, inputs, packed, target, bias=padded_bias, mode=mode, activation=activation)
    assert on.native.reserve(on.handle, len(x)) == 0
    on.rows(source, len(x), dtype)[:, : x.shape[1]] = x.to(dtype)
    out = on.rows(target, len(x), dtype if gated else torch.float32)
    if initial is not None:
        out[:, :width] = initial
    on.run(len(x))
    return out[:, :width].clone()


def add_linear(
    on: Operations, source: int, weight: PackedWeight, target: int, *, bias: int | None = None,
    mode: int = library.STORE, activation: str = "silu",
) -> None:  # fmt: skip
    """Add a linear operation from one buffer to another; `bias` is an address."""
    segments = (ctypes.POINTER(kernel_structs.Weight) * len(weight.segments))(*map(ctypes.pointer, weight.segments))
    on.native.add_linear(
        on.handle, source, segments, len(segments), bias, mode, library.EXPERT_ACTIVATIONS[activation], None, target
    )


def blocks(name: str, outputs: int, inputs: int, seed: int) -> BlockRows:
    """Return random blocks of a type whose products fit float32."""
    kind = TYPES[name]
    rows = random_blocks(kind, outputs, inputs // kind.block_size, seed=seed)
    if name == "MXFP4":  # sums of products with 2**127 would not fit float32
        rows[:, :: kind.block_bytes] = 100 + rows[:, :: kind.block_bytes] % 64
    return BlockRows(kind, rows)


def packed(*parts: BlockRows, gated: bool = False) -> PackedWeight:
    """Return blocks as a packed weight; none may be damaged."""
    need_native()
    weight, damaged = Packer(get_thread_pool(2), library.BFLOAT16).pack_blocks(parts, gated=gated)
    assert damaged == (0,) * len(parts)
    return weight


def whole_rows(count: int, inputs: int, seed: int) -> torch.Tensor:
    """Rows of whole numbers up to 127, which are rounded to themselves: only the order of float32 sums is left."""
    x = torch.randint(-127, 128, (count, inputs), generator=torch.Generator().manual_seed(seed)).bfloat16()
    x[:, ::32] = 127  # the largest of each group
    return x
