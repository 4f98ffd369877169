"""shape: the config of a small Gemma 3 decoder with both kinds of layers."""

from typing import Any

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig


def shape(**fields: Any) -> DecoderConfig:
    return parse_decoder_config({
        "architectures": ["Gemma3ForCausalLM"], "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"], "sliding_window": 3,
        "query_pre_attn_scalar": 16, "max_position_embeddings": 64, **fields,
    })  # fmt: skip
