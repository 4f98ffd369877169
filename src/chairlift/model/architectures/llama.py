"""Llama, Mistral (a sliding window in every layer) and Qwen2 (biases on query, key and value; some sliding layers).

Source: transformers 5.23 models/llama, models/mistral, models/qwen2. Their differences are fields of DecoderConfig.
"""

from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.layer_groups import LayerGroups
from chairlift.model.layers.decoder import MLP, DecoderLayer, DecoderSpec, load_attention, load_lm_head
from chairlift.model.layers.linear_and_rms_norm import RMSNorm
from chairlift.model.layers.rope import RopeTable
from chairlift.model.weights.parameter_loader import ParameterLoader


def build(config: DecoderConfig, loader: ParameterLoader, ropes: tuple[RopeTable, RopeTable]) -> DecoderSpec:
    """Build the decoder with its parameters."""
    return build_pre_norm(config, loader, ropes, head_norm=False)


def build_pre_norm(
    config: DecoderConfig, loader: ParameterLoader, ropes: tuple[RopeTable, RopeTable], *, head_norm: bool
) -> DecoderSpec:
    """Build a decoder with a norm before attention and before the MLP; head_norm: also on query and key heads."""
    groups = LayerGroups.of(config.layer_windows)
    hidden = config.hidden_size

    def layer(index: int) -> DecoderLayer:
        name = f"model.layers.{index}"
        return DecoderLayer(
            before_attention=RMSNorm.load(loader, f"{name}.input_layernorm", hidden, config, gemma=False),
            attention=load_attention(
                loader, f"{name}.self_attn", config, index, groups, head_norm=head_norm, gemma=False
            ),
            after_attention=None,
            before_mlp=RMSNorm.load(loader, f"{name}.post_attention_layernorm", hidden, config, gemma=False),
            mlp=MLP.load(loader, f"{name}.mlp", config),
            after_mlp=None,
        )

    table = loader.embedding("model.embed_tokens.weight", (config.vocab_size, hidden), tied=config.tie_word_embeddings)
    layers = [layer(index) for index in range(config.num_layers)]
    norm = RMSNorm.load(loader, "model.norm", hidden, config, gemma=False)
    return DecoderSpec(config, table, layers, norm, load_lm_head(loader, config, table), ropes)
