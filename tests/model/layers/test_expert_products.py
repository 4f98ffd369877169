"""sum_of_experts: each row's experts and no others, added in the order of their ranks."""

import torch
from torch import Tensor

from chairlift.model.config.experts_config import CLAMPED_SWIGLU
from chairlift.model.layers.expert_products import add_by_rank, sum_of_experts
from chairlift.model.layers.ops import TorchOps
from chairlift.model.weights.expert_weights import ExpertWeights

OPS = TorchOps()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_expert(x: Tensor, weights: ExpertWeights, index: int) -> Tensor:
    gate_up, down = weights.gate_up[index], weights.down[index]
    assert isinstance(gate_up, Tensor) and isinstance(down, Tensor)
    both = gate_up @ x + (0 if weights.gate_up_bias is None else weights.gate_up_bias[index])
    gate, up = both.chunk(2)
    if weights.activation == CLAMPED_SWIGLU:
        gate, up = torch.minimum(gate, torch.tensor(7.0)), up.clip(-7, 7) + 1
        gated = gate / (1 + (-1.702 * gate).exp()) * up
    else:
        gated = gate / (1 + (-gate).exp()) * up
    return down @ gated + (0 if weights.down_bias is None else weights.down_bias[index])


def test_every_row_has_its_own_experts() -> None:
    for activation, has_bias in (("silu", False), (CLAMPED_SWIGLU, True)):
        gate_up, down = drawn(6, 2 * 9, 8) * 4, drawn(6, 8, 9, seed=1)
        biases = (drawn(6, 18, seed=2), drawn(6, 8, seed=3)) if has_bias else (None, None)
        weights = ExpertWeights(tuple(gate_up), tuple(down), *biases, activation)
        x, factors = drawn(5, 8, seed=4), drawn(5, 3, seed=5)
        experts = torch.tensor([[0, 1, 2], [5, 4, 0], [2, 0, 5], [1, 2, 0], [5, 1, 4]])  # none has expert 3
        found = sum_of_experts(x, experts, factors, weights, OPS)
        for row in range(5):
            parts = [one_expert(x[row], weights, int(index)) for index in experts[row]]
            expected = sum(part * factor for part, factor in zip(parts, factors[row], strict=True))
            torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=1e-12)


def test_outputs_are_added_from_the_best_expert_to_the_last_and_rounded_once() -> None:
    outputs = torch.tensor([[[2.0**30], [1.0], [-(2.0**30)], [1.0]]])
    ones = torch.ones(1, 4)
    assert add_by_rank(outputs, ones).item() == 1.0  # 2**30 + 1 is 2**30 in float32
    assert add_by_rank(outputs[:, [0, 2, 1, 3]], ones).item() == 2.0
    halves = torch.tensor([[[256.0], [1.0], [1.0]]]).bfloat16()
    assert add_by_rank(halves, torch.ones(1, 3)).item() == 258.0  # in bfloat16 each step would stay 256
