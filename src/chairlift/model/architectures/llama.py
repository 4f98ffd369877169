"""Llama, Mistral (a sliding window in every layer) and Qwen2 (biases on query, key and value; some sliding layers).

Source: transformers 5.23 models/llama, models/mistral, models/qwen2. What differs between them is in ModelConfig.
"""

from chairlift.model.layers.causal_lm import LayerGroups
from chairlift.model.layers.decoder import DecoderLayer, DecoderParts, Mlp, RMSNorm, take_attention, take_head
from chairlift.model.layers.rope import RopeTable
from chairlift.model.loading.model_config import ModelConfig
from chairlift.model.loading.parameter_loader import Take


def build(config: ModelConfig, take: Take, ropes: tuple[RopeTable, RopeTable]) -> DecoderParts:
    """Describe the decoder, with its parameters."""
    return build_pre_norm(config, take, ropes, head_norm=False)


def build_pre_norm(
    config: ModelConfig, take: Take, ropes: tuple[RopeTable, RopeTable], *, head_norm: bool
) -> DecoderParts:
    """Describe a decoder with a norm before attention and before the MLP; head_norm: and on query and key heads."""
    groups = LayerGroups.of(config.layer_windows)
    hidden = config.hidden_size

    def layer(index: int) -> DecoderLayer:
        name = f"model.layers.{index}"
        return DecoderLayer(
            before_attention=RMSNorm.taken(take, f"{name}.input_layernorm", hidden, config, gemma=False),
            attention=take_attention(
                take, f"{name}.self_attn", config, index, groups, head_norm=head_norm, gemma=False
            ),
            after_attention=None,
            before_mlp=RMSNorm.taken(take, f"{name}.post_attention_layernorm", hidden, config, gemma=False),
            mlp=Mlp.taken(take, f"{name}.mlp", config),
            after_mlp=None,
        )

    table = take.table("model.embed_tokens.weight", (config.vocab_size, hidden), tied=config.tie_word_embeddings)
    layers = [layer(index) for index in range(config.num_layers)]
    norm = RMSNorm.taken(take, "model.norm", hidden, config, gemma=False)
    return DecoderParts(config, table, layers, norm, take_head(take, config, table), ropes)
