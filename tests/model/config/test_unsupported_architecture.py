"""UnsupportedArchitecture: names the architecture of a config with its kind, and a remedy."""

from typing import Any

import pytest

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from support_shares import for_each


@for_each(
    ("content", "message", "remedy"),
    [
        ({"architectures": ["Qwen2VLForConditionalGeneration"]}, "also takes images or audio", "the text model"),
        ({"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}}, "images", "the text model"),
        ({"architectures": ["WhisperForConditionalGeneration"], "is_encoder_decoder": True}, "audio", "text model"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "an encoder-decoder",
         "ends in ForCausalLM"),
        ({"architectures": ["BertForMaskedLM"]}, "has no language model head", "ends in ForCausalLM"),
        ({"architectures": ["Qwen3Model"]}, "has no language model head", "ends in ForCausalLM"),
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM; supported are LlamaForCausalLM", "add-a-model.md"),
        ({}, "config.json names no architecture; supported are", "docs/add-a-model.md"),
    ],
)  # fmt: skip
def test_an_unsupported_architecture_is_named_with_its_kind(content: dict[str, Any], message: str, remedy: str) -> None:
    with pytest.raises(UnsupportedArchitecture) as caught:
        parse_decoder_config(content)
    assert message in caught.value.message and remedy in str(caught.value.details["remedy"])
