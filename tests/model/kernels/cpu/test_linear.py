"""Linear kernels against float64 products: every kind of weight, every instruction set, odd shapes."""

import ctypes
import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import Packer, padded_inputs
from chairlift.model.kernels.cpu.weight_kinds import DTYPES, KINDS
from chairlift.model.layers.ops import clamped_swiglu
from support_native import Operations, add_linear, instruction_sets, linear, row_dtype
from support_shares import for_each

SHAPES = [
    (1, 64, 64),
    (2, 33, 70),
    (7, 128, 31),
    (13, 96, 200),
    (25, 257, 130),
    (64, 512, 192),
    (300, 65, 65),
    (3, 1100, 64),
]
"""Rows, inputs, outputs."""

WIDTHS = (torch.float64, torch.float32)

EXACT = ("bfloat16", "float16", "float32")

ROUNDED = {"int8": 0.03, "int8-channel": 0.03, "int6": 0.05, "int4": 0.12}
"""Kind of weight -> largest relative error of products with normally distributed numbers."""


def random_bf16(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def random_rows(kind: str, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(row_dtype(KINDS[kind]))


def random_weight(kind: str, *shape: int, seed: int = 0) -> Tensor:
    dtype = DTYPES.get(KINDS[kind], torch.bfloat16)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def quantized(x: Tensor, group: int | None, most: int = 127) -> Tensor:
    """Round rows of x [N, I] to levels -most to most with one scale per group, in float64. Scales are not rounded."""
    wide = x.double()
    size = wide.shape[1] if group is None else group
    padded = functional.pad(wide, (0, -wide.shape[1] % size)).view(len(wide), -1, size)
    scale = padded.abs().amax(-1, keepdim=True) / most
    rounded = (padded / scale.clamp_min(1e-30)).round() * scale
    return rounded.view(len(wide), -1)[:, : wide.shape[1]]


def quantized4(weight: Tensor) -> Tensor:
    """Round a weight [O, I] to 16 even steps from the least to the largest of each group of 32 inputs, in float64."""
    wide = functional.pad(weight.double(), (0, -weight.shape[1] % 32), mode="replicate").view(len(weight), -1, 32)
    least, most = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    step = ((most - least) / 15).clamp_min(1e-30)
    return (((wide - least) / step).round() * step + least).view(len(weight), -1)[:, : weight.shape[1]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", instruction_sets())
def test_products_equal_float64(name: str, kind: str, shape: tuple[int, int, int]) -> None:
    rows, inputs, outputs = shape
    x, weight = random_rows(kind, rows, inputs, seed=1), random_weight(kind, outputs, inputs, seed=2)
    found = linear(name, x, weight, KINDS[kind]).double()
    exact = x.double() @ weight.double().T
    if kind in EXACT:
        bound = 4e-7 * (x.double().abs() @ weight.double().abs().T) + 1e-6  # the order of float32 sums
        assert ((found - exact).abs() <= bound * max(1.0, inputs**0.5)).all()
        return
    group = None if kind == "int8-channel" else 32
    rounded = quantized4(weight) if kind == "int4" else quantized(weight, group, 31 if kind == "int6" else 127)
    error, ideal = (found - exact).norm(), (quantized(x, group) @ rounded.T - exact).norm()
    # Groups have other scales than the ideal rounding. With so few numbers their error may be larger by chance.
    assert error <= (1.05 if group is None else 1.2) * ideal + 1e-4 * exact.norm()


@for_each("rows", [1, 2, 3, 4, 7, 70])
@for_each("inputs", [32, 77, 1120])
@for_each("name", instruction_sets())
def test_products_of_4_bits_are_those_of_their_codes(name: str, inputs: int, rows: int) -> None:
    """Rows of whole numbers up to 127 are rounded to themselves, so only the order of float32 sums is left."""
    dice = torch.Generator().manual_seed(rows)
    x = torch.randint(-127, 128, (rows, inputs), generator=dice).bfloat16()
    x[:, ::32] = 127  # the largest of each group
    weight = torch.randn(70, inputs, generator=dice).bfloat16()
    on = Operations("portable")
    packed, _ = Packer(on.pool, library.INT4_GROUP).pack([weight])
    table = on.buffer(library.F32, inputs)
    on.native.add_embed(on.handle, None, 0, ctypes.byref(packed.struct), inputs, 1.0, table)
    assert on.native.reserve(on.handle, 70) == 0
    ids = torch.arange(70)
    on.run(70, ids=ids.data_ptr())
    codes = on.rows(table, 70, torch.float32)[:, :inputs].double()
    assert all(len(row.unique()) <= 16 for group in codes.split(32, 1) for row in group)
    found, exact = linear(name, x, weight, library.INT4_GROUP).double(), x.double() @ codes.T
    assert ((found - exact).abs() <= 1e-6 * (x.double().abs() @ codes.abs().T)).all()


@for_each("rows", [1, 2, 3, 7, 70])
@for_each("name", instruction_sets())
def test_the_largest_codes_overflow_nothing(name: str, rows: int) -> None:
    """All codes are 15, and all values of a row are 127 or -127: sums of 16 bits are at their largest."""
    weight = torch.full((66, 96), 1.5)
    weight[:, ::32] = 0.0  # code 0 of a group whose other codes are 15
    x = torch.ones(rows, 96)
    x[1::2] = -1.0
    found = linear(name, x.bfloat16(), weight.bfloat16(), library.INT4_GROUP)
    assert torch.allclose(found, x @ weight.T, rtol=1e-3, atol=0.0)


@for_each("rows", [1, 2, 3, 7, 70])
@for_each("kind", ["int8", "int8-channel", "int6"])
@for_each("name", instruction_sets())
def test_the_largest_int8_values_overflow_nothing(name: str, kind: str, rows: int) -> None:
    """All values are the largest ones after rounding: sums of products are the largest of 16 bits."""
    dice = torch.Generator().manual_seed(rows)
    x, weight = (torch.randint(0, 2, (count, 160), generator=dice) * 2.0 - 1.0 for count in (rows, 80))
    x[0], weight[0] = 1.0, -1.0
    found = linear(name, x.bfloat16(), weight.bfloat16(), KINDS[kind])
    assert torch.allclose(found, x @ weight.T, rtol=0.0, atol=1e-3 if kind == "int8-channel" else 0.6)
    assert found[0, 0] < -159


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", instruction_sets())
def test_random_shapes(name: str, kind: str) -> None:
    dice = random.Random(f"{name} {kind}")
    for trial in range(12):
        rows, inputs, outputs = dice.randint(1, 300), dice.randint(1, 400), dice.randint(1, 300)
        x, weight = random_rows(kind, rows, inputs, seed=trial), random_weight(kind, outputs, inputs, seed=trial + 100)
        exact = x.double() @ weight.double().T
        error = (linear(name, x, weight, KINDS[kind]).double() - exact).norm() / exact.norm()
        assert error <= (1e-6 if kind in EXACT else ROUNDED[kind]), (rows, inputs, outputs)


@for_each("activation", library.ACTIVATIONS)
@for_each("inner", [16, 40, 96])
@for_each("kind", KINDS)
@for_each("name", instruction_sets())
def test_gated_pairs(name: str, kind: str, inner: int, activation: str) -> None:
    x, weight, bias = (
        random_rows(kind, 9, 64, seed=3),
        random_weight(kind, 2 * inner, 64, seed=4) * 0.3,
        random_bf16(2 * inner, seed=5),
    )
    found = linear(name, x, weight, KINDS[kind], bias=bias, mode=library.GATED, activation=activation).double()
    gate, up = (x.double() @ weight.double().T + bias.double()).chunk(2, dim=-1)
    kinds = {
        "silu": functional.silu, "gelu": functional.gelu,
        "gelu_pytorch_tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
    }  # fmt: skip
    exact = kinds[activation](gate) * up
    assert (found - exact).norm() / exact.norm() <= (ROUNDED | {"bfloat16": 4e-3, "float16": 1e-6, "float32": 1e-6})[
        kind
    ]


@pytest.mark.parametrize("activation", library.ACTIVATIONS)
@pytest.mark.parametrize("name", instruction_sets())
def test_activations_at_the_ends_of_the_numbers(name: str, activation: str) -> None:
    gates = torch.tensor([-1e4, -200.0, -89.0, -20.0, -1.0, 0.0, 1.0, 20.0, 89.0, 200.0, 1e4]).bfloat16()
    x = gates[:, None]
    weight = torch.cat((torch.ones(16, 1), torch.zeros(16, 1))).bfloat16()
    bias = torch.cat((torch.zeros(16), torch.ones(16)))
    found = linear(name, x, weight, library.BFLOAT16, bias=bias, mode=library.GATED, activation=activation)[:, 0]
    exact = functional.silu(gates.double()) if activation == "silu" else functional.gelu(gates.double())
    assert torch.allclose(found.double(), exact, rtol=1e-2, atol=1e-3)


@for_each("kind", ["bfloat16", "float32"])
@for_each("name", instruction_sets())
def test_the_activation_of_gpt_oss_at_the_ends_of_the_numbers(name: str, kind: str) -> None:
    ends = [-1e4, -200.0, -89.0, -52.0, -7.5, -1.0, 0.0, 1.0, 6.875, 7.0, 7.125, 1e4, torch.inf, -torch.inf, torch.nan]
    pairs = torch.tensor([(gate, up) for gate in ends for up in ends])
    # The weight takes the gate of a row from its first input and the up from its second; an infinity times 0 is NaN.
    x = pairs[pairs.isfinite().all(1)].to(row_dtype(KINDS[kind]))
    weight = torch.zeros(32, 2)
    weight[:16, 0] = weight[16:, 1] = 1.0
    found = linear(
        name, x, weight.to(row_dtype(KINDS[kind])), KINDS[kind], mode=library.GATED, activation="clamped_swiglu"
    )
    exact = clamped_swiglu(x[:, :1].double(), x[:, 1:].double()).expand(-1, 16)
    torch.testing.assert_close(found.double(), exact, rtol=1e-2 if kind == "bfloat16" else 1e-5, atol=1e-6)
    for bad in (torch.nan, torch.inf):
        invalid = linear(
            name, torch.tensor([[bad, 1.0]]).to(x.dtype), weight.to(x.dtype), KINDS[kind], mode=library.GATED,
            activation="clamped_swiglu",
        )  # fmt: skip
        assert not invalid.isfinite().any()


@pytest.mark.parametrize("name", instruction_sets())
def test_sums_are_added_to_what_is_there(name: str) -> None:
    x, weight, initial, bias = (
        random_bf16(5, 48),
        random_bf16(70, 48),
        random_bf16(5, 70).float(),
        random_bf16(70).float(),
    )
    found = linear(name, x, weight, library.BFLOAT16, mode=library.ADD, initial=initial, bias=bias)
    assert torch.allclose(found, initial + bias + x.float() @ weight.float().T, atol=1e-4)


@for_each("mode", [library.STORE, library.GATED])
@for_each("kind", KINDS)
@for_each("name", instruction_sets())
def test_a_row_has_the_same_bits_in_every_batch(name: str, kind: str, mode: int) -> None:
    x, weight = random_rows(kind, 61, 160, seed=6), random_weight(kind, 192, 160, seed=7)
    together = linear(name, x, weight, KINDS[kind], mode=mode)
    for first, count in ((0, 1), (3, 2), (10, 3), (5, 4), (20, 5), (31, 6), (7, 7), (2, 23), (0, 60)):
        alone = linear(name, x[first : first + count], weight, KINDS[kind], mode=mode, threads=1 + count % 3)
        assert torch.equal(alone, together[first : first + count])


@for_each("rows", [7, 96, 97, 230])
@for_each("kind", KINDS)
@for_each("name", instruction_sets())
def test_a_row_has_the_same_bits_where_many_rows_pass_over_a_panel_in_pieces(name: str, kind: str, rows: int) -> None:
    x, weight = random_rows(kind, rows, 1130, seed=10), random_weight(kind, 90, 1130, seed=11)  # 36 groups of inputs
    together = linear(name, x, weight, KINDS[kind])
    for first in sorted({0, 1, rows // 3, rows // 2, rows - 5}):
        assert torch.equal(linear(name, x[first : first + 2], weight, KINDS[kind]), together[first : first + 2])
    exact = x.double() @ weight.double().T
    assert (together.double() - exact).norm() / exact.norm() <= (2e-6 if kind in EXACT else ROUNDED[kind])


@for_each("rows", [1, 2, 7, 64, 97])
@for_each("name", instruction_sets())
def test_float16_weights_have_the_bits_of_the_same_numbers_in_float32(name: str, rows: int) -> None:
    x, weight = random_rows("float16", rows, 577, seed=rows), random_weight("float16", 96, 577)
    weight[0, :3] = torch.tensor([2.0**-24, 65504.0, -(2.0**-15)]).half()  # the smallest, the largest, below normal
    for mode in (library.STORE, library.GATED):
        found = linear(name, x, weight, library.FLOAT16, mode=mode)
        assert torch.equal(found, linear(name, x, weight.float(), library.FLOAT32, mode=mode))


@for_each("kind", KINDS)
@for_each("name", instruction_sets())
@for_each(("inputs", "place"), [(64, 5), (1100, 5), (1100, 300), (1100, 1099)])
def test_what_is_no_number_stays_in_its_row(inputs: int, place: int, name: str, kind: str) -> None:
    x, weight = random_rows(kind, 8, inputs, seed=8), random_weight(kind, 64, inputs, seed=9)
    clean = linear(name, x, weight, KINDS[kind])
    for bad in (torch.nan, -torch.nan, torch.inf, -torch.inf):
        invalid = x.clone()
        invalid[3, place] = bad
        found = linear(name, invalid, weight, KINDS[kind])
        assert not found[3].isfinite().any()
        assert torch.equal(found[[0, 1, 2, 4, 5, 6, 7]], clean[[0, 1, 2, 4, 5, 6, 7]])


@pytest.mark.parametrize("width", [32, 96, 600, 1100])
@pytest.mark.parametrize("name", instruction_sets())
def test_groups_are_quantised_to_the_bit(name: str, width: int) -> None:
    """Several groups at once or one alone: 127 / (largest of 32), ties to even; a group of zeros stays zeros."""
    on = Operations(name, 2)
    x = random_bf16(5, width, seed=4).float() * torch.logspace(-30, 30, 5)[:, None]
    x[2, 32:64] = 0
    source, target = on.buffer(library.F32, width), on.buffer(library.QUANTIZED, width, library.INT8_GROUP)
    on.native.add_quantize(on.handle, source, target)
    assert on.native.reserve(on.handle, len(x)) == 0
    on.rows(source, len(x), torch.float32)[:, :width] = x
    on.run(len(x))
    groups = functional.pad(x, (0, -width % 32)).view(len(x), -1, 32)
    max_abs = groups.abs().amax(-1, keepdim=True)
    # torch computes 127 / max_abs as 127 * (1 / max_abs): divide tensors.
    inverse = torch.where(max_abs > 0, torch.full_like(max_abs, 127) / max_abs, 0)
    once, twice = ((groups.to(dtype) * inverse).round().to(torch.int8).view(len(x), -1) for dtype in WIDTHS)
    found = on.rows(target, len(x), torch.int8)[:, : once.shape[1]]
    assert ((found == once) | (found == twice)).all(), "the product may be rounded to float32 first, or not"


@for_each("kind", ["int8", "int8-channel", "int6"])
@for_each(("threads", "tokens"), [(1, 41), (2, 41), (5, 41), (5, 2)])
@for_each("name", instruction_sets())
def test_a_norm_that_goes_on_into_int8_has_the_bits_of_both_after_another(
    name: str, threads: int, tokens: int, kind: str
) -> None:  # fmt: skip
    on, width = Operations(name, threads), 600
    weight, _ = Packer(on.pool, KINDS[kind]).pack([random_bf16(70, width, seed=5)], gated=False)
    scale = on.keep(random_bf16(width, seed=6).float())
    source = on.buffer(library.F32, width)
    outs = []
    for fused in (False, True):
        normed = on.buffer(library.F32, width)
        target = on.buffer(library.QUANTIZED, padded_inputs(weight), KINDS[kind])
        on.native.add_norm(on.handle, source, scale, 1e-6, normed, False, target if fused else -1)
        if not fused:
            on.native.add_quantize(on.handle, normed, target)
        outs.append(on.buffer(library.F32, 70))
        add_linear(on, target, weight, outs[-1])
    assert on.native.reserve(on.handle, tokens) == 0
    on.rows(source, tokens, torch.float32)[:, :width] = random_bf16(tokens, width, seed=7).float()
    on.run(tokens)
    apart, together = (on.rows(out, tokens, torch.float32)[:, :70] for out in outs)
    assert apart.abs().sum() > 0 and torch.equal(apart, together)
