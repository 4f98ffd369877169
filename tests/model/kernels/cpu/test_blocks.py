"""Products with weights in ggml's blocks: those of gguf's numbers, for every type, shape and instruction set."""

import ctypes

import numpy as np
import pytest
import torch

from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import Packer, fits_segments
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.kernels.cpu.weight_kinds import BLOCK_KINDS
from chairlift.model.weights.gguf_blocks import HALF_SCALES, dequantize
from support_native import TYPES, Operations, blocks, instruction_sets, linear, need_native, packed, whole_rows
from support_shares import for_each


def numbers(weight: BlockRows) -> torch.Tensor:
    rows = weight.rows if weight.order is None else weight.rows[weight.order]
    return torch.from_numpy(dequantize(rows, weight.type)).double()


def assert_close(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Compare with float64. A minimum is subtracted from a sum of products, so its size counts, too."""
    sizes = x.double().abs() @ (weight.abs() + weight.abs().amax(1, keepdim=True)).T
    assert ((found.double() - x.double() @ weight.T).abs() <= 2e-6 * sizes + 1e-30).all()


@for_each("rows", [1, 2, 3, 4, 5, 7, 70])
@for_each("kind", list(BLOCK_KINDS))
@for_each("name", instruction_sets())
def test_products_are_those_of_the_numbers_in_the_file(name: str, kind: str, rows: int) -> None:
    for outputs, inputs in ((70, 256), (1, 512), (200, 2304)):
        weight = blocks(kind, outputs, inputs, seed=rows)
        x = whole_rows(rows, inputs, seed=rows)
        assert_close(linear(name, x, packed(weight), BLOCK_KINDS[kind]), x, numbers(weight))


@for_each("kind", [name for name in BLOCK_KINDS if TYPES[name].block_size == 32])
@for_each("name", instruction_sets())
def test_inputs_need_not_fill_whole_super_blocks(name: str, kind: str) -> None:
    weight = blocks(kind, 65, 96, seed=3)
    x = whole_rows(5, 96, seed=4)
    assert_close(linear(name, x, packed(weight), BLOCK_KINDS[kind]), x, numbers(weight))


@for_each("kind", list(BLOCK_KINDS))
@for_each("name", instruction_sets())
def test_the_largest_codes_overflow_nothing(name: str, kind: str) -> None:
    for fill in (0xFF, 0x00, 0x77, 0x80):
        weight = blocks(kind, 66, 512, seed=5)
        scales = weight.rows.reshape(66, -1, TYPES[kind].block_bytes)
        kept = {at: scales[..., at : at + 2].copy() for at in HALF_SCALES.get(kind, ())}
        exponent = scales[..., 0].copy()
        scales[...] = fill
        for at, half in kept.items():
            scales[..., at : at + 2] = half
        if kind == "MXFP4":
            scales[..., 0] = exponent
        x = torch.full((7, 512), 127.0).bfloat16()
        x[1::2] = -127
        assert_close(linear(name, x, packed(weight), BLOCK_KINDS[kind]), x, numbers(weight))


@for_each("kind", list(BLOCK_KINDS))
@for_each("name", instruction_sets())
def test_a_row_has_the_same_bits_in_every_batch(name: str, kind: str) -> None:
    weight = packed(blocks(kind, 200, 1280, seed=6))
    x = torch.randn(150, 1280, generator=torch.Generator().manual_seed(7))
    whole = linear(name, x, weight, BLOCK_KINDS[kind])
    for begin, end in ((0, 1), (1, 3), (3, 6), (6, 11), (11, 40), (40, 150)):
        assert torch.equal(linear(name, x[begin:end], weight, BLOCK_KINDS[kind]), whole[begin:end])
    assert torch.equal(linear(name, x, weight, BLOCK_KINDS[kind], threads=1), whole)


@for_each("kind", list(BLOCK_KINDS))
def test_a_packed_table_has_the_bits_of_the_file(kind: str) -> None:
    weight = blocks(kind, 130, 768, seed=8)
    table, on = packed(weight), Operations("portable")
    x = on.buffer(library.F32, 768)
    on.native.add_embed(on.handle, None, 0, ctypes.byref(table.struct), 768, 1.0, x)
    assert on.native.reserve(on.handle, 130) == 0
    ids = torch.arange(130)
    on.run(130, ids=ids.data_ptr())
    assert torch.equal(on.rows(x, 130, torch.float32)[:, :768], numbers(weight).float())


@for_each("name", instruction_sets())
def test_rows_are_reordered_and_gates_alternate_with_ups(name: str) -> None:
    order = np.random.default_rng(9).permutation(80).astype(np.int32)
    gates, ups = blocks("Q4_K", 80, 256, seed=10), blocks("Q4_K", 80, 256, seed=11)
    gates = BlockRows(gates.type, gates.rows, order)
    x = whole_rows(6, 256, seed=12)
    weight = packed(gates, ups, gated=True)
    found = linear(name, x, weight, library.Q4_K, mode=library.GATED, activation="gelu").double()
    gate, up = (x.double() @ numbers(each).T for each in (gates, ups))
    exact = torch.nn.functional.gelu(gate) * up
    assert ((found[:, :80] - exact).abs() <= 0.01 * exact.abs() + 1e-3 * exact.abs().max()).all()


@for_each("rows", [1, 4, 70])
@for_each("name", instruction_sets())
def test_segments_of_several_kinds_are_one_product(name: str, rows: int) -> None:
    parts = [
        blocks("Q4_K", 96, 512, seed=13), blocks("Q4_K", 64, 512, seed=14), blocks("Q6_K", 32, 512, seed=15),
        blocks("Q8_0", 70, 512, seed=16),
    ]  # fmt: skip
    weight = packed(*parts)
    assert [segment.kind for segment in weight.segments] == [library.Q4_K, library.Q6_K, library.Q8_0]
    x, bias = whole_rows(rows, 512, seed=17), torch.randn(262, generator=torch.Generator().manual_seed(18))
    found = linear(name, x, weight, library.Q4_K, bias=bias)
    assert_close(found - bias, x, torch.cat([numbers(part) for part in parts]))
    alone = [linear(name, x, packed(part), BLOCK_KINDS[part.type.name]) for part in parts]
    assert torch.equal(linear(name, x, weight, library.Q4_K), torch.cat(alone, 1))


def test_which_parts_fit_one_weight() -> None:
    assert fits_segments([96, 32, 5], ["Q4_K", "Q6_K", "Q8_0"], gated=False)
    assert fits_segments([70, 26, 5], ["Q4_K", "Q4_K", "Q8_0"], gated=False)
    assert not fits_segments([70, 32], ["Q4_K", "Q6_K"], gated=False)
    assert not fits_segments([64, 64], ["Q4_K", "Q6_K"], gated=True)
    assert fits_segments([70, 70], ["Q4_K", "Q4_K"], gated=True)
    assert not fits_segments([64], ["F16"], gated=False)


@pytest.mark.parametrize("kind", list(BLOCK_KINDS))
def test_blocks_with_infinite_scales_are_counted(kind: str) -> None:
    need_native()
    weight = blocks(kind, 70, 512, seed=19)
    assert Packer(get_thread_pool(2), library.BFLOAT16).pack_blocks([weight])[1] == (0,)
    bytes_of = weight.rows.reshape(70, -1, TYPES[kind].block_bytes)
    for row, at in enumerate(HALF_SCALES.get(kind, ())):
        bytes_of[row, 1, at : at + 2] = np.array([np.inf if row else np.nan], "<f2").view(np.uint8)
    if kind == "MXFP4":
        bytes_of[3, 0, 0] = 255
    _, damaged = Packer(get_thread_pool(2), library.BFLOAT16).pack_blocks([weight])
    assert damaged == (len(HALF_SCALES.get(kind, (0,))),)


def test_numbers_are_not_packed_as_blocks() -> None:
    need_native()
    with pytest.raises(AssertionError, match="takes blocks"):
        Packer(get_thread_pool(1), library.Q4_K).pack([torch.zeros(64, 256)])
