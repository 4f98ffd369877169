"""The native kernels in tests: whether they must be here, and single operations of theirs on tensors."""

import ctypes
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu import compile as compiling
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import Packer
from chairlift.model.kernels.cpu.threads import get_thread_pool


def need_native() -> None:
    """Skip a test of the kernels where there is no compiler; where there is one they must be here."""
    try:
        library.load()
    except ConfigError:
        try:
            compiling.find_compiler()
        except compiling.CompileFailed:
            pytest.skip("no C++ compiler")
        raise


def instruction_sets() -> tuple[str, ...]:
    """Return those that run here, for parametrize; the portable one where none is compiled."""
    try:
        return library.instruction_sets()
    except ConfigError:
        return ("portable",)


@dataclass
class Operations:
    """A list of operations over a few buffers, made anew for a test."""

    instruction_set: str
    members: int = 2
    kept: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        need_native()
        self.native = library.load()
        self.pool = get_thread_pool(self.members)
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

    def run(self, tokens: int, **more: object) -> None:
        step = library.Step(tokens=tokens, **more)
        assert self.native.run(self.handle, ctypes.byref(step)) == 0

    def keep(self, tensor: Tensor) -> int:
        """Return the address of a tensor that lives as long as this."""
        self.kept.append(tensor)
        return tensor.data_ptr()


def linear(
    instruction_set: str, x: Tensor, weight: Tensor, kind: int, *, bias: Tensor | None = None,
    mode: int = library.STORE, activation: str = "silu", onto: Tensor | None = None, members: int = 2,
) -> Tensor:  # fmt: skip
    """Multiply x [T, I] by a weight [O, I] (gates, then ups, where the mode is GATED), through the kernels."""
    on = Operations(instruction_set, members)
    gated = mode == library.GATED
    parts = list(weight.chunk(2)) if gated else [weight]
    packed, _ = Packer(on.pool, kind).pack([part.bfloat16() for part in parts], gated=gated)
    on.kept.append(packed)
    width = len(weight) // 2 if gated else len(weight)
    source = on.buffer(library.HALVES, x.shape[1])
    target = on.buffer(library.HALVES if gated else library.FLOATS, width)
    used = source
    if kind != library.BFLOAT16:
        used = on.buffer(library.QUANTIZED, packed.struct.steps * 4, kind)
        on.native.add_quantize(on.handle, source, used)
    placed = None
    if bias is not None:
        from chairlift.model.kernels.cpu.decoder_program import gated_rows

        rows = gated_rows(bias) if gated else bias
        placed = on.keep(torch.nn.functional.pad(rows.float(), (0, packed.struct.panels * 64 - len(rows))))
    on.native.add_linear(
        on.handle, used, ctypes.byref(packed.struct), placed, mode, library.ACTIVATIONS[activation], None, target
    )
    assert on.native.reserve(on.handle, len(x)) == 0
    on.rows(source, len(x), torch.bfloat16)[:, : x.shape[1]] = x.bfloat16()
    out = on.rows(target, len(x), torch.bfloat16 if gated else torch.float32)
    if onto is not None:
        out[:, :width] = onto
    on.run(len(x))
    return out[:, :width].clone()
