"""DecoderConfig: the longest context that its positions support, and the norms of a layer."""

from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig, LayerNorms

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def of(**fields: Any) -> DecoderConfig:
    return parse_decoder_config({**LLAMA, **fields})


def test_a_context_past_what_the_positions_are_made_for_is_refused_with_both_numbers() -> None:
    plain = of(max_position_embeddings=512)
    assert plain.context_length() == 512
    assert plain.context_length(512) == 512
    with pytest.raises(ConfigError, match=r"max_model_len is 513, the model's limit is 512$"):
        plain.context_length(513)
    dynamic = of(rope_scaling={"type": "dynamic", "factor": 2.0}, max_position_embeddings=512)
    assert dynamic.context_length(512) == 512
    with pytest.raises(ConfigError, match=r"513, the model's limit is 512, the original length of its RoPE"):
        dynamic.context_length(513)


def test_yarn_stretches_the_length_of_pretraining() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    config = of(rope_scaling=yarn, max_position_embeddings=512)
    assert config.context_length() == 512
    assert config.context_length(2048) == 2048
    with pytest.raises(ConfigError, match=r"2049, the model's limit is 2048$"):
        config.context_length(2049)


def test_a_layer_has_two_norms_and_those_that_are_named() -> None:
    assert LayerNorms().count == 2
    assert LayerNorms(after_mlp="post_mlp_layernorm").count == 3
