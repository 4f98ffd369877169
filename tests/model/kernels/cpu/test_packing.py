"""Packer and Arena: positions of weights in the panels, rounding errors of int8, memory in large chunks."""

import ctypes
import hashlib
from itertools import pairwise

import numpy as np
import pytest
import torch

from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import CHUNK_BYTES, LAYOUT, Arena, PackedWeight, Packer
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.kernels.cpu.weight_kinds import DTYPES, KINDS
from support_native import Operations, instruction_sets, linear, need_native


def packer(kind: int = library.BFLOAT16) -> Packer:
    need_native()
    return Packer(get_thread_pool(2), kind)


def unpacked(weight: PackedWeight) -> torch.Tensor:
    """Read a weight that is not quantized back from the layout in kernels.h; float32 [outputs, inputs]."""
    struct, dtype = weight.struct, DTYPES[weight.struct.kind]
    per_step = 4 // dtype.itemsize
    if struct.kind == library.FLOAT16:
        words = weight.memory[0].view(dtype).view(struct.panels, struct.steps, per_step, 64).permute(0, 1, 3, 2)
    else:
        words = weight.memory[0].view(dtype).view(struct.panels, struct.steps, 64, per_step)
    return words.permute(0, 2, 1, 3).reshape(struct.panels * 64, -1)[: struct.outputs, : struct.inputs].float()


@pytest.mark.parametrize("shape", [(64, 2), (1, 1), (65, 33), (200, 64), (130, 7)])
@pytest.mark.parametrize("kind", DTYPES)
def test_every_weight_has_its_place(kind: int, shape: tuple[int, int]) -> None:
    rows = torch.randn(shape).to(DTYPES[kind])
    assert torch.equal(unpacked(packer(kind).pack([rows])[0]), rows.float())


def test_parts_lie_below_one_another() -> None:
    parts = [torch.randn(count, 48).bfloat16() for count in (70, 3, 41)]
    assert torch.equal(unpacked(packer().pack(parts)[0]), torch.cat(parts).float())


def test_gates_lie_beside_what_they_gate() -> None:
    gates, ups = torch.randn(40, 8).bfloat16(), torch.randn(40, 8).bfloat16()
    both = unpacked(packer().pack([gates, ups], gated=True)[0]).view(-1, 2, 16, 8)
    assert torch.equal(both[:, 0].flatten(0, 1)[:40], gates.float())
    assert torch.equal(both[:, 1].flatten(0, 1)[:40], ups.float())


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_packed_table_can_be_looked_up_in(kind: int) -> None:
    table = torch.randn(130, 70, generator=torch.Generator().manual_seed(1)).bfloat16()
    packed, rounding_error = packer(kind).pack([table])
    on = Operations("portable")
    x = on.buffer(library.F32, 70)
    on.native.add_embed(on.handle, None, 0, ctypes.byref(packed.struct), 70, 2.0, x)
    ids = torch.randperm(130, generator=torch.Generator().manual_seed(2))
    assert on.native.reserve(on.handle, len(ids)) == 0
    on.run(len(ids), ids=ids.data_ptr())
    found = on.rows(x, len(ids), torch.float32)[:, :70] / 2
    error = (found - table[ids].float()).norm() / table[ids].float().norm()
    assert error <= (
        {
            library.INT8_CHANNEL: 0.01, library.INT8_GROUP: 0.007, library.FLOAT16: 1e-4, library.INT6_GROUP: 0.022,
            library.INT4_GROUP: 0.08,
        }
    ).get(kind, 0.0)  # fmt: skip
    assert rounding_error is None if kind in DTYPES else rounding_error == pytest.approx(float(error) ** 2, rel=1e-3)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", [name for name in KINDS if name.startswith("int")])
@pytest.mark.parametrize("name", instruction_sets())
def test_a_rounded_weight_that_is_no_number_reaches_its_output_alone(name: str, kind: str, value: float) -> None:
    x, weight = torch.ones(3, 96), torch.randn(70, 96, generator=torch.Generator().manual_seed(1))
    expected = linear(name, x, weight, KINDS[kind])
    weight[5, 40] = value
    found = linear(name, x, weight, KINDS[kind])
    assert found[:, 5].isnan().all()
    others = [column for column in range(70) if column != 5]
    assert torch.equal(found[:, others], expected[:, others])


@pytest.mark.parametrize("values", [[0.0] * 32, [0.25] * 32, [1e-7] * 32, [60000.0, -60000.0] * 16, [1e6, 0.0] * 16])
def test_groups_of_4_bits_at_the_limits_of_their_scales(values: list[float]) -> None:
    weight = torch.tensor([values])
    found = linear("portable", torch.eye(32), weight, library.INT4_GROUP)
    limit = 65504 * 15.0 if max(values) > 65504 * 15 else 1e9
    assert torch.allclose(found[:, 0], weight[0].clamp(-limit, limit), rtol=2e-2, atol=1e-7)


@pytest.mark.parametrize("name", instruction_sets())
def test_every_float16_is_widened_exactly(name: str) -> None:
    """By products with 1 in the vectors of each instruction set, and by looking up in a table."""
    table = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)[:, None]
    exact = table[:, 0].float().nan_to_num(7.0, posinf=torch.inf, neginf=-torch.inf)
    product = linear(name, torch.ones(1, 1), table, library.FLOAT16)[0]
    packed, _ = packer(library.FLOAT16).pack([table])
    on, ids = Operations(name), torch.arange(2**16)
    x = on.buffer(library.F32, 1)
    on.native.add_embed(on.handle, None, 0, ctypes.byref(packed.struct), 1, 1.0, x)
    assert on.native.reserve(on.handle, len(ids)) == 0
    on.run(len(ids), ids=ids.data_ptr())
    for found in (product, on.rows(x, len(ids), torch.float32)[:, 0]):
        assert torch.equal(found.nan_to_num(7.0, posinf=torch.inf, neginf=-torch.inf), exact)


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        (library.BFLOAT16, "622ef535ae221d3a"), (library.INT8_CHANNEL, "3f8e02992715467e"),
        (library.INT8_GROUP, "d84c4e917778c64a"), (library.FLOAT32, "8979367e28dc35b3"),
        (library.FLOAT16, "e8331e1fb622e0e5"), (library.INT6_GROUP, "32e5975287935b7d"),
    ],
)  # fmt: skip
def test_who_changes_the_layout_changes_its_number(kind: int, digest: str) -> None:
    """Files of packed weights outlive the code that wrote them: raise LAYOUT with each change of the digests."""
    assert LAYOUT == 3
    rows = torch.arange(-3000, 3000).remainder(251).sub(125).float().div(64).view(75, 80).bfloat16()
    found = hashlib.sha256()
    for gated, parts in ((False, [rows]), (True, [rows[:33], rows[33:66]])):
        for piece in packer(kind).pack(parts, gated=gated)[0].memory:
            found.update(piece.numpy().tobytes())
    assert found.hexdigest()[:16] == digest


def test_the_arena_gives_zeros_on_cache_lines_and_grows() -> None:
    arena = Arena()
    pieces = [arena.allocate(size) for size in (1, 100, 64, CHUNK_BYTES, 10)]
    assert [len(piece) for piece in pieces] == [1, 100, 64, CHUNK_BYTES, 10]
    assert all(piece.data_ptr() % 64 == 0 for piece in pieces)
    ends = sorted((piece.data_ptr(), piece.data_ptr() + len(piece)) for piece in pieces)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    assert not any(np.any(piece[:1000].numpy()) for piece in pieces)
