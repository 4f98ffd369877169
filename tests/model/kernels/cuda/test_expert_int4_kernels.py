"""Kernels of experts with 4-bit codes by Triton's interpreter: torch's experts, bits that depend on a row alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from chairlift.model.config.experts_config import CLAMPED_SWIGLU
from chairlift.model.kernels.cuda import expert_int4_kernels, expert_kernels
from chairlift.model.kernels.cuda.expert_int4_kernels import int4_expert_tiles
from chairlift.model.kernels.int4_linear import Int4Weight
from chairlift.model.layers.expert_products import sum_of_experts
from chairlift.model.layers.ops import TorchOps
from chairlift.model.weights.expert_weights import ExpertWeights
from support_int4 import drawn_weight
from support_shares import for_each

OPS = TorchOps()
EXPERTS, HIDDEN, NEURONS = 5, 96, 64


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def choice(rows: int, chosen: int) -> Tensor:
    dice = torch.Generator().manual_seed(rows)
    orders = [torch.randperm(EXPERTS, generator=dice)[:chosen] for _ in range(rows)]
    return torch.stack(orders) if orders else torch.empty(0, chosen, dtype=torch.int64)


def layer(scales: torch.dtype = torch.float16) -> tuple[Int4Weight, Int4Weight]:
    return (
        drawn_weight(EXPERTS * 2 * NEURONS, HIDDEN, scales, seed=1),
        drawn_weight(EXPERTS * HIDDEN, NEURONS, scales, seed=2),
    )


def biases(has_bias: bool) -> tuple[Tensor, Tensor] | None:
    return (drawn(EXPERTS, 2 * NEURONS, seed=3), drawn(EXPERTS, HIDDEN, seed=4)) if has_bias else None


@pytest.mark.parametrize("activation", ["silu", CLAMPED_SWIGLU])
@for_each(
    ("rows", "chosen", "has_bias", "scales"),
    [(1, 2, False, torch.float16), (0, 1, True, torch.float16), (50, 3, True, torch.float32)],
)
def test_a_layer_is_that_of_its_numbers(
    rows: int, chosen: int, has_bias: bool, scales: torch.dtype, activation: str
) -> None:  # fmt: skip
    stacked, of_layer, experts = layer(scales), biases(has_bias), choice(rows, chosen)
    x, factors = drawn(rows, HIDDEN), drawn(rows, chosen, seed=6)
    found = expert_kernels.sum_of_experts(x, experts, factors, EXPERTS, stacked, of_layer, activation)
    gate_up, down = (each.dense(torch.float64).view(EXPERTS, -1, each.shape[1]) for each in stacked)
    wide = (None, None) if of_layer is None else tuple(each.double() for each in of_layer)
    weights = ExpertWeights(tuple(gate_up), tuple(down), *wide, activation)
    expected = sum_of_experts(x.double(), experts, factors.double(), weights, OPS)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-5)


def test_a_row_has_the_same_bits_alone_and_at_any_place_of_any_batch() -> None:
    stacked, of_layer = layer(), biases(True)
    count = int4_expert_tiles(torch.float32).rows * 2 + 9
    x, experts, factors = drawn(count, HIDDEN), choice(count, 2), drawn(count, 2, seed=8)

    def of(rows: Any) -> Tensor:
        return expert_kernels.sum_of_experts(x[rows], experts[rows], factors[rows], EXPERTS, stacked, of_layer, "silu")

    together, order = of(slice(None)), torch.randperm(count, generator=torch.Generator().manual_seed(9))
    for row in (0, 5, count - 1):
        assert torch.equal(of(slice(row, row + 1))[0], together[row])
    assert torch.equal(of(order), together[order])


@for_each("dense", [0, 1])
def test_one_projection_may_have_codes_and_the_other_none(dense: int) -> None:
    """As in a file of type Q4_K_M, which has some projections in 6 bits."""
    stacked, experts, x, factors = list(layer()), choice(20, 2), drawn(20, HIDDEN), drawn(20, 2, seed=6)
    expected = expert_kernels.sum_of_experts(x, experts, factors, EXPERTS, (stacked[0], stacked[1]), None, "silu")
    numbers = stacked[dense].dense(torch.float32).view(EXPERTS, -1, stacked[dense].shape[1])
    mixed = (numbers, stacked[1]) if dense == 0 else (stacked[0], numbers)
    found = expert_kernels.sum_of_experts(x, experts, factors, EXPERTS, mixed, None, "silu")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


def test_each_variant_is_one_of_these_kernels() -> None:
    found = list(expert_int4_kernels.variants())
    assert {each.kernel.fn.__name__ for each in found} == {"int4_gate_up_kernel", "int4_down_kernel"}
    assert len({each.name for each in found}) == len(found)
