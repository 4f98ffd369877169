"""Kernels of experts by Triton's interpreter: torch's experts, and bits that depend on a row alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from chairlift.model.config.experts_config import CLAMPED_SWIGLU
from chairlift.model.kernels.cuda import expert_kernels
from chairlift.model.kernels.cuda.expert_kernels import expert_tiles, sort_pairs
from chairlift.model.layers.expert_products import sum_of_experts
from chairlift.model.layers.ops import TorchOps
from chairlift.model.weights.expert_weights import ExpertWeights
from support_shares import for_each

OPS = TorchOps()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def choice(rows: int, num_experts: int, chosen: int, seed: int = 0) -> Tensor:
    """Return distinct experts of each row; the last expert has no row."""
    dice = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(num_experts - 1, generator=dice)[:chosen] for _ in range(rows)]
    return torch.stack(orders) if orders else torch.empty(0, chosen, dtype=torch.int64)


def layer(num_experts: int, hidden: int, neurons: int, has_bias: bool) -> tuple[tuple[Tensor, Tensor], Any]:
    stacked = drawn(num_experts, 2 * neurons, hidden, seed=1) * 0.3, drawn(num_experts, hidden, neurons, seed=2) * 0.3
    biases = (drawn(num_experts, 2 * neurons, seed=3), drawn(num_experts, hidden, seed=4)) if has_bias else None
    return stacked, biases


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh", CLAMPED_SWIGLU])
@for_each(
    ("rows", "num_experts", "chosen", "hidden", "neurons", "has_bias"),
    [(1, 4, 2, 32, 32, False), (0, 4, 2, 32, 32, True), (9, 5, 3, 40, 24, True), (70, 3, 1, 33, 50, False)],
)
def test_a_layer_is_that_of_torch(
    rows: int, num_experts: int, chosen: int, hidden: int, neurons: int, has_bias: bool, activation: str
) -> None:
    stacked, biases = layer(num_experts, hidden, neurons, has_bias)
    experts = choice(rows, num_experts, chosen)
    factors, x = drawn(rows, chosen, seed=6), drawn(rows, hidden, seed=7)
    found = expert_kernels.sum_of_experts(x, experts, factors, num_experts, stacked, biases, activation)
    gate_up, down = (each.double() for each in stacked)
    wide = (None, None) if biases is None else tuple(each.double() for each in biases)
    weights = ExpertWeights(tuple(gate_up), tuple(down), *wide, activation)
    expected = sum_of_experts(x.double(), experts, factors.double(), weights, OPS)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-5)


@for_each("has_bias", [False, True])
def test_a_row_has_the_same_bits_alone_and_at_any_place_of_any_batch(has_bias: bool) -> None:
    stacked, biases = layer(5, 40, 24, has_bias)
    count = expert_tiles(torch.float32).rows + 9
    x, experts, factors = drawn(count, 40), choice(count, 5, 2), drawn(count, 2, seed=8)

    def of(rows: Any) -> Tensor:
        return expert_kernels.sum_of_experts(x[rows], experts[rows], factors[rows], 5, stacked, biases, "silu")

    together = of(slice(None))
    for row in (0, 5, count - 1):
        assert torch.equal(of(slice(row, row + 1))[0], together[row])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(9))
    assert torch.equal(of(order), together[order])
    wide = drawn(count, 100)
    wide[:, 20:60] = x
    strided = expert_kernels.sum_of_experts(wide[:, 20:60], experts, factors, 5, stacked, biases, "silu")
    assert torch.equal(strided, together)


def test_outputs_are_added_from_the_best_expert_to_the_last() -> None:
    gate_up, down = torch.ones(4, 2, 1), torch.tensor([2.0**30, 1.0, -(2.0**30), 1.0]).view(4, 1, 1)
    x, factors = torch.ones(1, 1), torch.ones(1, 4) / torch.nn.functional.silu(torch.ones(1, 1))
    for order, total in (([0, 1, 2, 3], 1.0), ([0, 2, 1, 3], 2.0)):
        found = expert_kernels.sum_of_experts(x, torch.tensor([order]), factors, 4, (gate_up, down), None, "silu")
        assert found.item() == pytest.approx(total, rel=1e-6)


@for_each("tile_rows", [1, 4, 16])
@for_each("rows", [1, 3, 40])
def test_tiles_cover_every_pair_once_and_have_one_expert(rows: int, tile_rows: int) -> None:
    experts = choice(rows, 7, 3, seed=rows)
    tiles = sort_pairs(experts, 7, tile_rows)
    covered = []
    for expert, begin, end in zip(tiles.experts.tolist(), tiles.begins.tolist(), tiles.ends.tolist(), strict=True):
        if expert == 7:
            continue
        places = list(range(begin, min(begin + tile_rows, end)))
        assert places and {int(experts.flatten()[tiles.pairs[place]]) for place in places} == {expert}
        covered += places
    assert sorted(covered) == list(range(3 * rows))
    assert sorted(tiles.pairs.tolist()) == list(range(3 * rows))


def test_numbers_of_16_bits_are_rounded_once() -> None:
    stacked, _ = layer(4, 32, 32, False)
    halves = tuple(each.half() for each in stacked)
    x, experts, factors = drawn(6, 32).half(), choice(6, 4, 2), drawn(6, 2, seed=5)
    found = expert_kernels.sum_of_experts(x, experts, factors, 4, (halves[0], halves[1]), None, "silu")
    wide = (halves[0].float(), halves[1].float())
    exact = expert_kernels.sum_of_experts(x.float(), experts, factors, 4, wide, None, "silu")
    assert found.dtype == torch.float16
    assert (found.float() - exact).norm() / exact.norm() < 1e-3


def test_each_variant_is_one_of_these_kernels() -> None:
    found = list(expert_kernels.variants())
    assert {each.kernel.fn.__name__ for each in found} == {"gate_up_kernel", "down_kernel", "sum_kernel"}
    assert len({each.name for each in found}) == len(found)
