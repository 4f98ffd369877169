"""load_decoder: loads the parts of the decoder that a DecoderConfig describes, for every architecture."""

import torch

from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.layer_groups import LayerGroups
from chairlift.model.config.rope_config import RopeConfig
from chairlift.model.layers.decoder import MLP, DecoderLayer, DecoderSpec, load_attention, load_lm_head
from chairlift.model.layers.experts import Experts
from chairlift.model.layers.linear_and_rms_norm import RMSNorm
from chairlift.model.layers.rope import RopeTable, query_scales
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
    tables: dict[RopeConfig | None, RopeTable] = {}
    for rope in dict.fromkeys(config.layer_ropes):
        if rope is None:
            tables[rope] = RopeTable.identity(config.head_dim, positions, rope_dtype, device)
        else:
            tables[rope] = RopeTable.of(rope.for_length(positions), config.head_dim, positions, rope_dtype, device)
    scaling = config.query_scaling
    scales = None if scaling is None else query_scales(scaling, positions, rope_dtype, device)
    hidden, groups = config.hidden_size, LayerGroups.of(config.layer_windows)

    def norm(name: str) -> RMSNorm:
        return RMSNorm.load(loader, name, hidden, config)

    def norm_of(layer: str, name: str | None) -> RMSNorm | None:
        return None if name is None else norm(f"{layer}.{name}")

    def layer(index: int) -> DecoderLayer:
        name, norms = f"model.layers.{index}", config.norms
        return DecoderLayer(
            before_attention=norm_of(name, norms.before_attention),
            attention=load_attention(
                loader, f"{name}.self_attn", config, index, groups, tables[config.layer_ropes[index]], scales
            ),
            after_attention=norm_of(name, norms.after_attention),
            before_mlp=norm_of(name, norms.before_mlp),
            mlp=MLP.load(loader, f"{name}.mlp", config)
            if (experts := config.experts_of(index)) is None
            else Experts.load(loader, f"{name}.mlp", experts, hidden),
            after_mlp=norm_of(name, norms.after_mlp),
            residual_multiplier=config.residual_multiplier,
        )

    table = loader.embedding("model.embed_tokens.weight", (config.vocab_size, hidden), tied=config.tie_word_embeddings)
    layers = [layer(index) for index in range(config.num_layers)]
    return DecoderSpec(config, table, layers, norm("model.norm"), load_lm_head(loader, config, table))
