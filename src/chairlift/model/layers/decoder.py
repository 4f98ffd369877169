"""TorchDecoder: the decoder of all architectures: embedding, layers of attention and MLP, optional post-norms, lm_head.

    x ─ before_attention ─ Attention ─ after_attention? ─(+)─ before_mlp ─ Mlp ─ after_mlp? ─(+)─
    │                                                     │ │                                  │
    └─────────────────────────────────────────────────────┘ └──────────────────────────────────┘

Inference only: parameters are plain tensors, the runner calls under torch.inference_mode. Projections of the same input
are one: query, key and value are stacked by rows in one weight, and so are gate and up; query and key heads are
normalised and rotated together. decoder_loading.py loads the parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.attention.base import AttentionSpec
from chairlift.model.config.decoder_config import HEAD, PROJECTION, DecoderConfig
from chairlift.model.config.layer_groups import AttentionShape, LayerGroups
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.layers.experts import Experts
from chairlift.model.layers.gated_delta_net import GatedDeltaNet
from chairlift.model.layers.linear_and_rms_norm import Linear, RMSNorm
from chairlift.model.layers.mamba2 import Mamba2
from chairlift.model.layers.mlp import MLP, MLPWithExperts
from chairlift.model.layers.ops import Ops
from chairlift.model.layers.per_layer_inputs import LayerInput, PerLayerInputs
from chairlift.model.layers.rope import RopeTable
from chairlift.model.layers.short_convolution import ShortConvolution
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest, compute_lm_head_output
from chairlift.model.weights.linear_weight import LinearWeight
from chairlift.model.weights.parameter_loader import ParameterLoader

StateLayer = GatedDeltaNet | Mamba2 | ShortConvolution
"""A layer that keeps a state for each sequence, instead of keys and values."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention over the paged cache.

    Attributes:
        projection: query, key and value projection; rows in this order. A layer that reads the keys and values of
            another one has no rows of these, and one whose values are its keys none of values.
        head_norm: norm of each query and key head before the rotation, or None.
        projection_norms: norms of all query heads together, and of all key heads, or None.
        value_norm: norm of each value head, or None.
        rope: rotation of queries and keys.
        query_scales: [positions], factors on queries; None without.
        has_gate: whether rows of a gate follow those of values in the projection.
        num_heads: query heads.
        shape: the heads in the cache.
        num_keys: key heads of the projection.
        num_values: value heads of the projection.
        spec: attention parameters for the backend.
        kv_index: index of this layer's KV in the context.
    """

    projection: Linear
    output: Linear
    head_norm: RMSNorm | None
    projection_norms: tuple[RMSNorm, RMSNorm] | None
    value_norm: RMSNorm | None
    rope: RopeTable
    query_scales: Tensor | None
    has_gate: bool
    num_heads: int
    shape: AttentionShape
    num_keys: int
    num_values: int
    spec: AttentionSpec
    kv_index: int

    def __call__(self, x: Tensor, rotation: tuple[Tensor, Tensor], context: ForwardContext, ops: Ops) -> Tensor:
        """Write the keys and values of x [T, H] to the cache, then attend; returns [T, H]."""
        projected, gate = self.projection(x, ops), None
        if self.has_gate:
            width = self.num_heads * self.shape.head_dim
            projected, gate = projected[:, :-width].contiguous(), projected[:, -width:]
        if self.projection_norms is not None:
            projected = self._normed(projected, self.projection_norms, ops)
        heads = projected.view(len(x), self.num_heads + self.num_keys + self.num_values, -1)
        if self.query_scales is not None:
            scales = self.query_scales.index_select(0, context.batch.positions)[:, None, None]
            heads = torch.cat((heads[:, : self.num_heads] * scales, heads[:, self.num_heads :]), 1)
        kv, backend = context.kv[self.kv_index], context.backend
        slots = context.batch.groups[self.spec.group].slot_mapping
        if ops.rotate_and_write is not None and backend.has_plain_kv and self.num_values and self.value_norm is None:
            norm = None if self.head_norm is None else (self.head_norm.weight, self.head_norm.eps)
            query = ops.rotate_and_write(heads, norm, rotation, kv, slots)
        else:
            query, key, value = self._rotated(heads, rotation, ops)
            if self.num_keys:
                backend.write_kv(key, value, kv, slots)
        attended = query.new_empty(query.shape)
        backend.attend(query, kv, context.batch, self.spec, context.plan, attended)
        attended = attended.view(len(x), -1)
        return self.output(attended if gate is None else attended * torch.sigmoid(gate), ops)

    def _normed(self, projected: Tensor, norms: tuple[RMSNorm, RMSNorm], ops: Ops) -> Tensor:
        """Return the projection [T, O] with its queries and its keys normalised."""
        inner, kv_inner = self.num_heads * self.shape.head_dim, self.num_keys * self.shape.head_dim
        query, key, value = torch.split(projected, [inner, kv_inner, kv_inner], dim=1)
        return torch.cat((norms[0](query, ops), norms[1](key, ops), value), 1)

    def _rotated(self, heads: Tensor, rotation: tuple[Tensor, Tensor], ops: Ops) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of heads, with norms and rotation applied; those of another layer are none.

        A value without heads of its own is its key as it was projected.
        """
        num_rotated = self.num_heads + self.num_keys
        rotated = heads[:, :num_rotated]
        value = heads[:, num_rotated:] if self.num_values else heads[:, self.num_heads :]
        if self.value_norm is not None:
            value = self.value_norm(value, ops)
        if self.head_norm is not None:
            rotated = self.head_norm(rotated, ops)
        rotated = ops.rotate(rotated, *rotation)
        return rotated[:, : self.num_heads], rotated[:, self.num_heads :], value


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention or a layer with a state, and MLP, each with a residual connection, and the norms before and after them.

    Attributes:
        mixer: attention, or a layer that keeps a state.
        mlp: the MLP, or experts in its place or beside it.
        residual_multiplier: factor on what is added to the residual.
        state_index: index among the layers with a state; -1 for attention.
        layer_input: what the layer makes of its input beside the hidden state; None without.
        scalar: factor [1] on the hidden state at the layer's end; None without.
    """

    before_attention: RMSNorm | None
    mixer: Attention | StateLayer
    after_attention: RMSNorm | None
    before_mlp: RMSNorm | None
    mlp: MLP | Experts | MLPWithExperts
    after_mlp: RMSNorm | None
    residual_multiplier: float = 1.0
    state_index: int = -1
    layer_input: LayerInput | None = None
    scalar: Tensor | None = None

    def __call__(
        self, x: Tensor, update: Tensor | None, rotation: tuple[Tensor, Tensor] | None, own_input: Tensor | None,
        context: ForwardContext, ops: Ops,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Map x + update [T, H], or x if update is None, to the next x and update.

        The sum is left to the next norm, which is computed together with it. `own_input` [T, P] is that of layer_input.
        """
        x, normed = normed_sum(self.before_attention, x, update, ops)
        # Before the norm, which needs the whole sum and not a rank's part of it.
        attended = ops.sum_over_ranks(self._mixed(normed, rotation, context, ops))
        if self.after_attention is not None:
            attended = self.after_attention(attended, ops)
        x, normed = normed_sum(self.before_mlp, x, self._scaled(attended), ops)
        mapped = self._mapped(x, normed, ops)
        added = self._scaled(mapped if self.after_mlp is None else self.after_mlp(mapped, ops))
        if self.layer_input is not None:
            assert own_input is not None, "a layer without its input"
            x = x + added
            added = self.layer_input(x, own_input, ops)
        return (x, added) if self.scalar is None else ((x + added) * self.scalar, None)

    def _mapped(self, x: Tensor, normed: Tensor, ops: Ops) -> Tensor:
        """Return what the MLP, experts or both make of the hidden state x [T, H] and its norm."""
        if isinstance(self.mlp, MLPWithExperts):
            return self.mlp(x, normed, ops)
        return ops.sum_over_ranks(self.mlp(normed, ops))

    def _mixed(
        self, x: Tensor, rotation: tuple[Tensor, Tensor] | None, context: ForwardContext, ops: Ops
    ) -> Tensor:  # fmt: skip
        if isinstance(self.mixer, Attention):
            assert rotation is not None, "attention without a rotation"
            return self.mixer(x, rotation, context, ops)
        assert context.states is not None, "a layer with a state without states"
        assert context.state_step is not None, "a layer with a state without its rows"
        return self.mixer(x, context.states.layers[self.state_index], context.state_step, ops)

    def _scaled(self, update: Tensor) -> Tensor:
        return update if self.residual_multiplier == 1.0 else update * self.residual_multiplier


def normed_sum(norm: RMSNorm | None, x: Tensor, update: Tensor | None, ops: Ops) -> tuple[Tensor, Tensor]:
    """Return x + update [T, H], or x if update is None, and its norm; without a norm the sum itself."""
    if norm is not None:
        return norm.of_sum(x, update, ops)
    total = x if update is None else x + update
    return total, total


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """The parts of a decoder that load_decoder makes and a model backend runs.

    Attributes:
        config: the decoder's config.
        table: embedding table [V, H].
        layers: layers in order.
        norm: norm after the last layer.
        head: lm_head [V, H]; the table itself if the two are tied.
        per_layer_inputs: inputs of the layers beside the hidden state; None without.
    """

    config: DecoderConfig
    table: LinearWeight
    layers: Sequence[DecoderLayer]
    norm: RMSNorm
    head: LinearWeight
    per_layer_inputs: PerLayerInputs | None = None


class TorchDecoder:
    """A CausalLM (layers/causal_lm_protocol.py) that runs in torch, operation by operation.

    Attributes:
        groups, vocab_size, state_shapes: see CausalLM.
        dtype: dtype of parameters, activations and cache.
    """

    def __init__(self, parts: DecoderSpec, ops: Ops) -> None:
        config = parts.config
        self.groups = config.layer_groups
        self.vocab_size = config.vocab_size
        self._ops = ops
        assert isinstance(parts.table, Tensor), "torch looks up rows of tensors"
        self._table = parts.table
        self.dtype = self._table.dtype
        self._layers = tuple(parts.layers)
        chunk = ops.state_chunk_tokens
        self.state_shapes = tuple(replace(shape, chunk_tokens=chunk) for shape in config.state_shapes)
        ropes = {id(rope): rope for layer in self._layers if (rope := _rope_of(layer)) is not None}
        self._ropes = tuple(ropes.values())
        places = {each: place for place, each in enumerate(ropes)}
        self._rope_of_layer = tuple(places.get(id(_rope_of(layer)), -1) for layer in self._layers)
        self._per_layer_inputs = parts.per_layer_inputs
        self._norm = parts.norm
        self._head = parts.head
        scale = config.embed_scale
        self._embed_scale = None if scale is None else self._table.new_tensor(scale)
        self._softcap = config.final_softcap
        self._logits_divisor = config.logits_divisor

    def padded_size(self, num_tokens: int) -> int:
        """Return the padded number of tokens of a step."""
        return self._ops.padded_size(num_tokens)

    def forward(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Run input_ids [T] int64 at context.batch.positions through all layers; returns normed states [T, H]."""
        positions = context.batch.positions
        rotations = [*(rope.at(positions) for rope in self._ropes), None]  # the last is that of layers with a state
        x = self.embed(input_ids)
        if self._embed_scale is not None:
            x = x * self._embed_scale
        inputs = None if self._per_layer_inputs is None else self._per_layer_inputs(input_ids, x, self._ops)
        update: Tensor | None = None
        for index, (layer, rope) in enumerate(zip(self._layers, self._rope_of_layer, strict=True)):
            own_input = None if inputs is None else inputs[:, index]
            x, update = layer(x, update, rotations[rope], own_input, context, self._ops)
        return self._norm.of_sum(x, update, self._ops)[1]

    def embed(self, input_ids: Tensor) -> Tensor:
        """Look up input_ids int64 [T]: [T, H], without the factor of embeddings."""
        return self._ops.embed(input_ids, self._table)

    def project(self, hidden: Tensor) -> Tensor:
        """Multiply hidden states [R, H] by the lm_head: [R, V]."""
        count = len(hidden)
        if (more := self._ops.padded_size(count) - count) > 0:
            hidden = functional.pad(hidden, (0, 0, 0, more))
        return self._ops.linear(hidden, self._head, None)[:count]

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [R, V] of the same dtype from hidden states [R, H]."""
        logits = self.project(hidden)
        if self._logits_divisor != 1.0:
            logits = logits / self._logits_divisor
        return logits if self._softcap is None else self._ops.softcap(logits, self._softcap)

    def head(self, hidden: Tensor, request: LogitsRequest) -> LMHeadOutput:
        """See CausalLM."""
        return compute_lm_head_output(self.logits(hidden), request)


def _rope_of(layer: DecoderLayer) -> RopeTable | None:
    return layer.mixer.rope if isinstance(layer.mixer, Attention) else None


def load_attention(
    loader: ParameterLoader,
    name: str,
    config: DecoderConfig,
    layer: int,
    groups: LayerGroups,
    rope: RopeTable,
    query_scales: Tensor | None,
) -> Attention:
    """Load the attention of one layer; `layer` is its index among those with attention."""
    shape = config.attention_shape_of(layer)
    num_keys = shape.num_kv_heads if config.has_own_kv(layer) else 0
    num_values = 0 if layer in config.value_is_key else num_keys
    inner = config.num_heads * shape.head_dim
    group, kv_index = groups.places[layer]
    heads = {"q": config.num_heads, "k": num_keys, "v": num_values}
    projections = {f"{name}.{each}_proj": count * shape.head_dim for each, count in heads.items() if count}
    if config.has_output_gate:
        projections[f"{name}.gate_proj"] = inner
    norm, norms = load_head_norms(loader, name, config, shape.head_dim, num_keys)
    return Attention(
        projection=Linear.load(loader, projections, config.hidden_size, config.qkv_bias),
        output=Linear.load(loader, {f"{name}.o_proj": config.hidden_size}, inner, config.output_bias),
        head_norm=norm,
        projection_norms=norms,
        value_norm=RMSNorm.without_weight(shape.head_dim, config.norm_eps, rope.cos.device)
        if config.has_value_norm and num_keys
        else None,
        rope=rope,
        query_scales=query_scales,
        has_gate=config.has_output_gate,
        num_heads=config.num_heads,
        shape=shape,
        num_keys=num_keys,
        num_values=num_values,
        spec=AttentionSpec(
            group,
            config.attention_scale,
            config.layer_windows[layer],
            softcap=config.attention_softcap,
            sinks=loader(f"{name}.sinks", (config.num_heads,)) if config.has_sinks else None,
        ),
        kv_index=kv_index,
    )


def load_head_norms(
    loader: ParameterLoader, name: str, config: DecoderConfig, head_dim: int, num_keys: int
) -> tuple[RMSNorm | None, tuple[RMSNorm, RMSNorm] | None]:
    """Load Attention.head_norm and Attention.projection_norms of a layer with so many key heads of its own."""
    if config.head_norm == HEAD:
        query_norm = RMSNorm.load(loader, f"{name}.q_norm", head_dim, config)
        key_norm = RMSNorm.load(loader, f"{name}.k_norm", head_dim, config) if num_keys else query_norm
        return query_norm.concat_heads(key_norm, config.num_heads, num_keys), None
    if config.head_norm == PROJECTION:
        has_all_heads = not config.kv_sources and not config.value_is_key
        assert has_all_heads, "all key heads have one norm in every layer"
        query_norm = RMSNorm.load(loader, f"{name}.q_norm", config.num_heads * head_dim, config)
        return None, (query_norm, RMSNorm.load(loader, f"{name}.k_norm", num_keys * head_dim, config))
    return None, None


def load_lm_head(loader: ParameterLoader, config: DecoderConfig, table: LinearWeight) -> LinearWeight:
    """Load the lm_head [V, H], or return the embedding table if the two are tied."""
    if config.tie_word_embeddings:
        return table
    return loader.linear_weight([("lm_head.weight", (config.vocab_size, config.hidden_size))])
