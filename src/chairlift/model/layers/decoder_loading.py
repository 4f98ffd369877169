"""load_decoder: loads the parts of the decoder that a DecoderConfig describes, for every architecture."""

from itertools import count

import torch

from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.rope_config import RopeConfig
from chairlift.model.config.state_layers import GatedDeltaNetConfig, Mamba2Config, StateLayerConfig
from chairlift.model.layers.decoder import (
    Attention,
    DecoderLayer,
    DecoderSpec,
    StateLayer,
    load_attention,
    load_lm_head,
)
from chairlift.model.layers.experts import Experts
from chairlift.model.layers.gated_delta_net import GatedDeltaNet
from chairlift.model.layers.linear_and_rms_norm import RMSNorm
from chairlift.model.layers.mamba2 import Mamba2
from chairlift.model.layers.mlp import MLP, MLPWithExperts
from chairlift.model.layers.per_layer_inputs import LayerInput, PerLayerInputs
from chairlift.model.layers.rope import RopeTable, query_scales
from chairlift.model.layers.short_convolution import ShortConvolution
from chairlift.model.weights.parameter_loader import ParameterLoader


def load_decoder(
    config: DecoderConfig, loader: ParameterLoader, positions: int, rope_dtype: torch.dtype, device: torch.device
) -> DecoderSpec:
    """Load every parameter of a decoder once.

    Args:
        config: what the decoder is like.
        loader: returns parameters by canonical name and shape.
        positions: tokens of the longest sequence.
        rope_dtype: dtype of cosines and sines.
        device: device of cosines and sines.
    """
    tables, places = rope_tables(config, positions, rope_dtype, device), config.attention_places
    scaling = config.query_scaling
    scales = None if scaling is None else query_scales(scaling, positions, rope_dtype, device)
    hidden, groups = config.hidden_size, config.layer_groups

    def norm(name: str) -> RMSNorm:
        return RMSNorm.load(loader, name, hidden, config)

    def norm_of(layer: str, name: str | None) -> RMSNorm | None:
        return None if name is None else norm(f"{layer}.{name}")

    state_places = count()  # of each layer among those with a state

    def layer(index: int) -> DecoderLayer:
        name, norms = f"model.layers.{index}", config.norms
        mixer: Attention | StateLayer
        state_index = -1
        before_attention = norm_of(name, norms.before_attention)
        if (state := config.state_of(index)) is not None:
            mixer, state_index = load_state_layer(loader, name, state, hidden), next(state_places)
        else:
            place, rope = places[index], tables[index]
            assert place is not None, "a layer without attention and without a state"
            assert rope is not None, "a layer with attention without a rotation"
            mixer = load_attention(loader, f"{name}.self_attn", config, place, groups, rope, scales)
        return DecoderLayer(
            before_attention=before_attention,
            mixer=mixer,
            after_attention=norm_of(name, norms.after_attention),
            before_mlp=norm_of(name, norms.before_mlp),
            mlp=load_mlp(loader, name, config, index),
            after_mlp=norm_of(name, norms.after_mlp),
            residual_multiplier=config.residual_multiplier,
            state_index=state_index,
            layer_input=LayerInput.load(loader, name, config),
            scalar=loader(f"{name}.layer_scalar", (1,)) if config.has_layer_scalar else None,
        )

    table = loader.embedding("model.embed_tokens.weight", (config.vocab_size, hidden), tied=config.tie_word_embeddings)
    inputs = PerLayerInputs.load(loader, config)
    layers = [layer(index) for index in range(config.num_layers)]
    return DecoderSpec(config, table, layers, norm("model.norm"), load_lm_head(loader, config, table), inputs)


def load_mlp(loader: ParameterLoader, layer: str, config: DecoderConfig, index: int) -> MLP | Experts | MLPWithExperts:
    """Load the MLP of a layer, or its experts, or both."""
    experts, inner = config.experts_of(index), config.mlp_size_of(index)
    if experts is None:
        return MLP.load(loader, f"{layer}.mlp", config, inner)
    if config.expert_norms is None:
        return Experts.load(loader, f"{layer}.mlp", experts, config.hidden_size)
    return MLPWithExperts.load(loader, layer, config, experts, config.expert_norms, inner)


def rope_tables(
    config: DecoderConfig, positions: int, dtype: torch.dtype, device: torch.device
) -> tuple[RopeTable | None, ...]:  # fmt: skip
    """Return the rotation of each layer, one object where they are equal; None for a layer that keeps a state."""
    tables: dict[tuple[RopeConfig | None, int], RopeTable] = {}
    found: list[RopeTable | None] = []
    for rope, place in zip(config.layer_ropes, config.attention_places, strict=True):
        if place is None:
            found.append(None)
            continue
        head_dim = config.attention_shape_of(place).head_dim
        if (rope, head_dim) not in tables:
            tables[rope, head_dim] = (
                RopeTable.identity(head_dim, positions, dtype, device)
                if rope is None
                else RopeTable.of(rope.for_length(positions), head_dim, positions, dtype, device)
            )
        found.append(tables[rope, head_dim])
    return tuple(found)


def load_state_layer(
    loader: ParameterLoader, layer: str, config: StateLayerConfig, hidden_size: int
) -> StateLayer:  # fmt: skip
    """Load what a layer has in the place of attention."""
    if isinstance(config, GatedDeltaNetConfig):
        return GatedDeltaNet.load(loader, f"{layer}.linear_attn", config, hidden_size)
    if isinstance(config, Mamba2Config):
        return Mamba2.load(loader, f"{layer}.mamba", config, hidden_size)
    return ShortConvolution.load(loader, f"{layer}.conv", config)
