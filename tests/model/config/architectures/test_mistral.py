"""Mistral: a window in all layers or in none."""

from typing import Any

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig

MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def of(**fields: Any) -> DecoderConfig:
    return parse_decoder_config({**MISTRAL, **fields})


def test_mistral_slides_in_every_layer_unless_its_window_is_null() -> None:
    assert of().layer_windows == (4096,) * 4
    assert of(sliding_window=7).layer_windows == (7,) * 4
    assert of(sliding_window=None).layer_windows == (None,) * 4
    assert of(architectures=["LlamaForCausalLM"], sliding_window=7).layer_windows == (None,) * 4
