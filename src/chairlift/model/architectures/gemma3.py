"""Gemma 3, and the text part of its multimodal wrapper: sliding and full layers, each with its own rotation.

Source: transformers 5.23 models/gemma3. Norms come before and after attention and MLP, embeddings are scaled by
sqrt(hidden_size).
"""

from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.layer_groups import LayerGroups
from chairlift.model.layers.decoder import MLP, DecoderLayer, DecoderSpec, load_attention, load_lm_head
from chairlift.model.layers.linear_and_rms_norm import RMSNorm
from chairlift.model.layers.rope import RopeTable
from chairlift.model.weights.parameter_loader import ParameterLoader


def build(config: DecoderConfig, loader: ParameterLoader, ropes: tuple[RopeTable, RopeTable]) -> DecoderSpec:
    """Build the decoder with its parameters."""
    groups = LayerGroups.of(config.layer_windows)
    hidden = config.hidden_size

    def norm(name: str) -> RMSNorm:
        return RMSNorm.load(loader, name, hidden, config, gemma=True)

    def layer(index: int) -> DecoderLayer:
        name = f"model.layers.{index}"
        return DecoderLayer(
            before_attention=norm(f"{name}.input_layernorm"),
            attention=load_attention(loader, f"{name}.self_attn", config, index, groups, head_norm=True, gemma=True),
            after_attention=norm(f"{name}.post_attention_layernorm"),
            before_mlp=norm(f"{name}.pre_feedforward_layernorm"),
            mlp=MLP.load(loader, f"{name}.mlp", config),
            after_mlp=norm(f"{name}.post_feedforward_layernorm"),
        )

    table = loader.embedding("model.embed_tokens.weight", (config.vocab_size, hidden), tied=config.tie_word_embeddings)
    layers = [layer(index) for index in range(config.num_layers)]
    return DecoderSpec(
        config, table, layers, norm("model.norm"), load_lm_head(loader, config, table), ropes, hidden**0.5
    )
