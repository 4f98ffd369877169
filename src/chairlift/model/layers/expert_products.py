"""sum_of_experts: the reference of the products of experts, expert by expert, in any dtype and on any device."""

from typing import Protocol

import torch
from torch import Tensor

from chairlift.model.weights.expert_weights import ExpertWeights
from chairlift.model.weights.linear_weight import LinearWeight


class ExpertOps(Protocol):
    """The operations of an expert, part of Ops (ops.py)."""

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        """See Ops."""
        ...

    def gated_activation(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """See Ops."""
        ...


def sum_of_experts(x: Tensor, experts: Tensor, factors: Tensor, weights: ExpertWeights, ops: ExpertOps) -> Tensor:
    """See Ops.sum_of_experts; waits for the device."""
    (num_rows, num_chosen), hidden = experts.shape, weights.down[0].shape[0]
    pairs = experts.flatten()
    order = pairs.argsort(stable=True)
    counts = torch.bincount(pairs, minlength=len(weights.down)).tolist()
    outputs = x.new_empty(num_rows * num_chosen, hidden)
    for index, own in enumerate(torch.split(order, counts)):
        if len(own):
            outputs[own] = _expert(x[own // num_chosen], index, weights, ops)
    return add_by_rank(outputs.view(num_rows, num_chosen, hidden), factors)


def add_by_rank(outputs: Tensor, factors: Tensor) -> Tensor:
    """Return the sum of outputs [T, k, H] times factors [T, k], added one after another and rounded once: [T, H]."""
    terms = outputs.to(torch.promote_types(outputs.dtype, factors.dtype)) * factors[..., None]
    total = terms[:, 0]
    for rank in range(1, terms.shape[1]):
        total = total + terms[:, rank]
    return total.to(outputs.dtype)


def _expert(x: Tensor, index: int, weights: ExpertWeights, ops: ExpertOps) -> Tensor:
    """Return the output [n, H] of one expert for rows x [n, H]."""
    both = _product(x, weights.gate_up[index], weights.gate_up_bias, index, ops)
    gate, up = both.chunk(2, dim=-1)
    gated = ops.gated_activation(gate, up, weights.activation)
    return _product(gated, weights.down[index], weights.down_bias, index, ops)


def _product(x: Tensor, weight: LinearWeight, biases: Tensor | None, index: int, ops: ExpertOps) -> Tensor:
    return ops.linear(x, weight, None if biases is None else biases[index])
