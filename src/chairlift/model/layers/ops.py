"""Ops: the interface of a layer's operations besides attention, and TorchOps, the reference implementation.

RotateAndWrite is one more operation, which an Ops may have.

The numerics are those of transformers; they differ from pure float64 in a float64 model, too:

    norm, Llama kind   x to float32, normalised, rounded to x's dtype, then multiplied by the weight
    norm, Gemma kind   x to float32, normalised, multiplied by (1 + weight) in float32, then rounded
    RoPE               cosines and sines are float32 numbers (rope.py); the rotation is done in x's dtype
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.attention.base import PagedKV
from chairlift.model.batch.state_cache import LayerStates
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.experts_config import CLAMPED_SWIGLU, SWIGLU_LIMIT, SWIGLU_SLOPE
from chairlift.model.kernels import float8_linear, int4_linear
from chairlift.model.kernels.float8_linear import Float8Weight
from chairlift.model.kernels.int4_linear import Int4Weight
from chairlift.model.layers import linear_recurrence
from chairlift.model.layers.expert_products import sum_of_experts
from chairlift.model.weights.expert_weights import ExpertWeights
from chairlift.model.weights.linear_weight import LinearWeight

Product = Callable[[Tensor, Any, Tensor | None], Tensor]
"""Returns x [T, I] times the transpose of a weight [O, I] of one type, plus bias [O], if there is one: [T, O]."""


class RotateAndWrite(Protocol):
    """Prepares the heads of a layer for attention in one operation."""

    def __call__(
        self, heads: Tensor, norm: tuple[Tensor, float] | None, rotation: tuple[Tensor, Tensor], kv: PagedKV,
        slot_mapping: Tensor,
    ) -> Tensor:  # fmt: skip
        """Normalise and rotate query and key heads, and write keys and values to the cache.

        Args:
            heads: [T, heads + 2 * kv_heads, D]: query heads, key heads and value heads.
            norm: weight [heads + kv_heads, D] and eps of the norm of query and key heads, the weight as in rms_norm or
                in rms_norm_float32; None for no norm.
            rotation: cos and sin of Ops.rotate.
            kv: cache of a backend with has_plain_kv.
            slot_mapping: int64 [T]; nothing is written for -1.

        Returns the queries [T, heads, D].
        """
        ...


class Ops(Protocol):
    """The operations of a layer. Only run_recurrence changes an argument and mixes rows, those of one sequence."""

    @property
    def state_chunk_tokens(self) -> int:
        """Tokens of a chunk of run_recurrence; 0 where it goes token by token."""
        ...

    @property
    def rotate_and_write(self) -> RotateAndWrite | None:
        """Operation for norm, rotation and cache at once; None for one operation after another."""
        ...

    def padded_size(self, num_tokens: int) -> int:
        """Return the padded number of rows, at least num_tokens, that a step should have."""
        ...

    def pack(self, weight: Tensor) -> Tensor:
        """Return weight [O, I] in the fastest layout for `linear`: unchanged, or opaque to other operations."""
        ...

    def embed(self, input_ids: Tensor, table: Tensor) -> Tensor:
        """Look up input_ids int64 [T] in table [V, H]; returns [T, H]."""
        ...

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        """Return x [T, I] times the transpose of weight [O, I], plus bias [O]: [T, O].

        The weight is a tensor, packed or not, or of another type that the implementation multiplies by.
        """
        ...

    def sum_over_ranks(self, x: Tensor) -> Tensor:
        """Return x [T, H] added up over the ranks that share the model; x itself for a whole model."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return Llama's norm over the last axis; weight [H] or [heads, H] has x's dtype."""
        ...

    def rms_norm_float32(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return Gemma's norm over the last axis; weight [H] or [heads, H] is float32 and has its 1 added."""
        ...

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return x + y and its rms_norm; weight is [H]."""
        ...

    def add_rms_norm_float32(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return x + y and its rms_norm_float32; weight is [H]."""
        ...

    def gated_activation(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """Return activation(gate) * up, elementwise; activation is one of config.ACTIVATIONS.

        Experts may have CLAMPED_SWIGLU, too (experts_config.py).
        """
        ...

    def sum_of_experts(self, x: Tensor, experts: Tensor, factors: Tensor, weights: ExpertWeights) -> Tensor:
        """Return the outputs of each row's experts times their factors, added in order: [T, H] in x's dtype.

        Args:
            x: [T, H].
            experts: int64 [T, k], the experts of each row.
            factors: [T, k], float32, or float64 in such a model. Products with them and sums have their dtype.
            weights: of all experts.
        """
        ...

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate x [T, heads, D]: element i together with element i + D / 2.

        cos and sin [T, 1, D] have each angle twice, and the first half of sin is negated (RopeTable.at).
        """
        ...

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """Return cap * tanh(logits / cap)."""
        ...

    def run_recurrence(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None, states: LayerStates,
        step: StateStep,
    ) -> Tensor:  # fmt: skip
        """Run the recurrence of a layer with a state; see linear_recurrence.run_recurrence. Changes the states.

        `query` and `key` may have fewer heads than `value`, each of which serves as many of these in a row.
        """
        ...


class TorchOps:
    """Ops in plain torch, on any device and dtype; the reference of other implementations, which inherit from it.

    Attributes:
        products: type of a weight -> its product. A new type has a line here and one in each faster implementation.
    """

    rotate_and_write: RotateAndWrite | None = None
    state_chunk_tokens: int = 0
    products: Mapping[type, Product] = {
        Tensor: functional.linear, Float8Weight: float8_linear.linear, Int4Weight: int4_linear.linear,
    }  # fmt: skip

    def padded_size(self, num_tokens: int) -> int:
        """See Ops."""
        return num_tokens

    def pack(self, weight: Tensor) -> Tensor:
        """See Ops."""
        return weight

    def embed(self, input_ids: Tensor, table: Tensor) -> Tensor:
        """See Ops."""
        return functional.embedding(input_ids, table)

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        """See Ops. A subclass of Tensor, such as a parameter, is a tensor."""
        product = self.products.get(type(weight), self.products[Tensor])
        return product(x, weight, bias)

    def sum_over_ranks(self, x: Tensor) -> Tensor:
        """See Ops."""
        return x

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return weight * _normalised(x, eps).to(x.dtype)

    def rms_norm_float32(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return (_normalised(x, eps) * weight).to(x.dtype)

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        total = x + y
        return total, self.rms_norm(total, weight, eps)

    def add_rms_norm_float32(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        total = x + y
        return total, self.rms_norm_float32(total, weight, eps)

    def gated_activation(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """See Ops."""
        if activation == "silu":
            return functional.silu(gate) * up
        if activation == CLAMPED_SWIGLU:
            return clamped_swiglu(gate, up)
        return functional.gelu(gate, approximate="tanh" if activation == "gelu_pytorch_tanh" else "none") * up

    def sum_of_experts(self, x: Tensor, experts: Tensor, factors: Tensor, weights: ExpertWeights) -> Tensor:
        """See Ops; one expert after another."""
        return sum_of_experts(x, experts, factors, weights, self)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See Ops."""
        (left, right), half = x.chunk(2, dim=-1), x.shape[-1] // 2
        cos, sin = cos[..., :half], sin[..., half:]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """See Ops."""
        return torch.tanh(logits / cap) * cap

    def run_recurrence(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None, states: LayerStates,
        step: StateStep,
    ) -> Tensor:  # fmt: skip
        """See Ops; token by token."""
        assert states.recurrent is not None, "a recurrence has a state"
        return linear_recurrence.run_recurrence(query, key, value, decay, beta, states.recurrent, step)


def clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return CLAMPED_SWIGLU (experts_config.py) of gates and ups."""
    gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return (up + 1) * (gate * torch.sigmoid(gate * SWIGLU_SLOPE))


def _normalised(x: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.float32)
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
