"""Qwen2: which layers have a window."""

from typing import Any

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig

QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def of(**fields: Any) -> DecoderConfig:
    return parse_decoder_config({**QWEN2, **fields})


def test_qwen_uses_windows_from_a_layer_on_and_only_if_configured() -> None:
    sliding = {"sliding_window": 9, "max_window_layers": 3}
    assert of(**sliding).layer_windows == (None,) * 4
    assert of(use_sliding_window=True, **sliding).layer_windows == (None, None, None, 9)
    all_slide = of(architectures=["Qwen3ForCausalLM"], use_sliding_window=True, sliding_window=9, max_window_layers=0)
    assert all_slide.layer_windows == (9,) * 4
    none = of(use_sliding_window=True, sliding_window=None, max_window_layers=0)
    assert none.layer_windows == (None,) * 4
