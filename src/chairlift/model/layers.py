"""The decoder that all families share: embedding, attention, MLP, layers with optional norms behind them, head.

    x ─ before_attention ─ Attention ─ after_attention? ─(+)─ before_mlp ─ Mlp ─ after_mlp? ─(+)─
    │                                                     │ │                                  │
    └─────────────────────────────────────────────────────┘ └──────────────────────────────────┘

Inference only: parameters are plain tensors, the runner calls under torch.inference_mode. A family builds these parts
from `Take`, which hands out each parameter by name and shape; so the names stand in one place, and a `Take` that only
takes notes tells what a checkpoint must hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.attention.base import AttentionSpec
from chairlift.model.causal_lm import ForwardContext, LayerGroups
from chairlift.model.config import ModelConfig
from chairlift.model.ops import Ops
from chairlift.model.rope import RopeTable

Take = Callable[[str, tuple[int, ...]], Tensor]
"""Hands out the parameter of a name, which must have this shape, in the model's dtype and on its device."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection: weight [O, I], bias [O] or None."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def taken(cls, take: Take, name: str, outputs: int, inputs: int, bias: bool) -> "Linear":
        """Take name.weight and, where there is one, name.bias."""
        return cls(take(f"{name}.weight", (outputs, inputs)), take(f"{name}.bias", (outputs,)) if bias else None)

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """Project x [T, I] to [T, O]."""
        return ops.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """A norm over the last axis.

    Attributes:
        weight: [H]; of Gemma's kind float32 with the 1 added.
        eps: added to the mean square.
        gemma: which of the two float32 islands of ops.py.
    """

    weight: Tensor
    eps: float
    gemma: bool = False

    @classmethod
    def taken(cls, take: Take, name: str, size: int, config: ModelConfig, gemma: bool) -> "RMSNorm":
        """Take name.weight."""
        weight = take(f"{name}.weight", (size,))
        return cls(1.0 + weight.float() if gemma else weight, config.norm_eps, gemma)

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """Normalise x [..., H]."""
        norm = ops.rms_norm_float32 if self.gemma else ops.rms_norm
        return norm(x, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(activation(gate(x)) * up(x))."""

    gate: Linear
    up: Linear
    down: Linear
    activation: str

    @classmethod
    def taken(cls, take: Take, name: str, config: ModelConfig) -> "Mlp":
        """Take the three projections under a name."""
        inner, hidden, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
        return cls(
            Linear.taken(take, f"{name}.gate_proj", inner, hidden, bias),
            Linear.taken(take, f"{name}.up_proj", inner, hidden, bias),
            Linear.taken(take, f"{name}.down_proj", hidden, inner, bias),
            config.activation,
        )

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """Map x [T, H] to [T, H]."""
        return self.down(ops.gated(self.gate(x, ops), self.up(x, ops), self.activation), ops)


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention over the paged cache.

    Attributes:
        query_norm: over each head before the rotation, or None; key_norm likewise.
        head_dim: D.
        spec: for the backend.
        kv_index: which KV of the context is this layer's.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: RMSNorm | None
    key_norm: RMSNorm | None
    head_dim: int
    spec: AttentionSpec
    kv_index: int

    def __call__(self, x: Tensor, rotation: tuple[Tensor, Tensor], context: ForwardContext, ops: Ops) -> Tensor:
        """Write the keys and values of x [T, H] to the cache, then attend; returns [T, H]."""
        query = self.query(x, ops).view(len(x), -1, self.head_dim)
        key = self.key(x, ops).view(len(x), -1, self.head_dim)
        value = self.value(x, ops).view(len(x), -1, self.head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query, ops), self.key_norm(key, ops)
        query, key = ops.rotate(query, *rotation), ops.rotate(key, *rotation)
        kv, backend = context.kv[self.kv_index], context.backend
        backend.write_kv(key, value, kv, context.batch.groups[self.spec.group].slot_mapping)
        attended = torch.empty_like(query)
        backend.attend(query, kv, context.batch, self.spec, context.plan, attended)
        return self.output(attended.view(len(x), -1), ops)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention and MLP, each beside a residual; norms behind them are Gemma's."""

    before_attention: RMSNorm
    attention: Attention
    after_attention: RMSNorm | None
    before_mlp: RMSNorm
    mlp: Mlp
    after_mlp: RMSNorm | None

    def __call__(self, x: Tensor, rotation: tuple[Tensor, Tensor], context: ForwardContext, ops: Ops) -> Tensor:
        """Map x [T, H] to [T, H]."""
        attended = self.attention(self.before_attention(x, ops), rotation, context, ops)
        x = x + (attended if self.after_attention is None else self.after_attention(attended, ops))
        mapped = self.mlp(self.before_mlp(x, ops), ops)
        return x + (mapped if self.after_mlp is None else self.after_mlp(mapped, ops))


class Decoder:
    """A CausalLM (causal_lm.py) put together by a family.

    Attributes:
        groups, vocab_size, num_kv_heads, head_dim: as the protocol says.
        dtype: of parameters, activations and cache.
    """

    def __init__(
        self, config: ModelConfig, ops: Ops, table: Tensor, layers: Sequence[DecoderLayer], norm: RMSNorm, head: Tensor,
        ropes: tuple[RopeTable, RopeTable], embed_scale: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.groups = LayerGroups.of(config.layer_windows)
        self.vocab_size = config.vocab_size
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.dtype = table.dtype
        self._ops = ops
        self._table = table
        self._layers = tuple(layers)
        self._slides = tuple(window is not None for window in config.layer_windows)
        self._norm = norm
        self._head = head
        self._ropes = ropes
        self._embed_scale = embed_scale
        self._softcap = config.final_softcap

    def forward(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Run input_ids [T] int64 at context.batch.positions through all layers; returns normed states [T, H]."""
        positions = context.batch.positions
        full, sliding = self._ropes
        rotations = [full.at(positions)] * 2 if sliding is full else [full.at(positions), sliding.at(positions)]
        x = self._ops.embed(input_ids, self._table)
        if self._embed_scale is not None:
            x = x * self._embed_scale
        for layer, slides in zip(self._layers, self._slides, strict=True):
            x = layer(x, rotations[slides], context, self._ops)
        return self._norm(x, self._ops)

    def logits(self, hidden: Tensor) -> Tensor:
        """Turn hidden states [R, H] into logits [R, V] of the same dtype."""
        logits = self._ops.linear(hidden, self._head, None)
        return logits if self._softcap is None else self._ops.softcap(logits, self._softcap)


def take_attention(
    take: Take, name: str, config: ModelConfig, layer: int, groups: LayerGroups, *, head_norm: bool, gemma: bool
) -> Attention:
    """Take the attention of one layer; head_norm: with a norm over each query and key head."""
    hidden, width = config.hidden_size, config.head_dim
    inner, kv_inner, bias = config.num_heads * width, config.num_kv_heads * width, config.qkv_bias
    group, kv_index = groups.places[layer]
    return Attention(
        query=Linear.taken(take, f"{name}.q_proj", inner, hidden, bias),
        key=Linear.taken(take, f"{name}.k_proj", kv_inner, hidden, bias),
        value=Linear.taken(take, f"{name}.v_proj", kv_inner, hidden, bias),
        output=Linear.taken(take, f"{name}.o_proj", hidden, inner, config.output_bias),
        query_norm=RMSNorm.taken(take, f"{name}.q_norm", width, config, gemma) if head_norm else None,
        key_norm=RMSNorm.taken(take, f"{name}.k_norm", width, config, gemma) if head_norm else None,
        head_dim=width,
        spec=AttentionSpec(group, config.attention_scale, config.layer_windows[layer]),
        kv_index=kv_index,
    )


def take_head(take: Take, config: ModelConfig, table: Tensor) -> Tensor:
    """Take the head [V, H]: the embedding table itself where the two are tied."""
    return table if config.tie_word_embeddings else take("lm_head.weight", (config.vocab_size, config.hidden_size))
