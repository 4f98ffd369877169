"""read_config: whose implementation runs a model, by the option and by what config.json needs."""

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift import LLM
from chairlift.core.errors import ConfigError, ModelError, UnsupportedArchitecture
from chairlift.model.config import select_model_config
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.select_model_config import parse_config, read_config
from chairlift.model.config.transformers_config import TransformersConfig
from support_models import save_tiny, tiny_config

COHERE: dict[str, Any] = {
    "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "vocab_size": 300, "hidden_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 512,
}  # fmt: skip


def llama(**fields: Any) -> dict[str, Any]:
    return json.loads(tiny_config("llama").to_json_string()) | {"architectures": ["LlamaForCausalLM"], **fields}


def test_own_architectures_are_native_unless_transformers_is_chosen() -> None:
    assert isinstance(parse_config(llama()), DecoderConfig) and isinstance(
        parse_config(llama(), "native"), DecoderConfig
    )
    assert isinstance(parse_config(llama(), "transformers"), TransformersConfig)
    assert isinstance(parse_config(COHERE), TransformersConfig)
    with pytest.raises(UnsupportedArchitecture, match="Cohere2ForCausalLM; supported are LlamaForCausalLM"):
        parse_config(COHERE, "native")


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e4}}},
        {"hidden_act": "relu"},
    ],
    ids=["longrope", "partial", "by layer type", "activation"],
)
def test_a_feature_that_native_layers_lack_goes_to_transformers(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(parse_config(llama(**fields)), TransformersConfig)
    with pytest.raises(UnsupportedArchitecture, match="not supported"):
        parse_config(llama(**fields), "native")
    monkeypatch.setattr(select_model_config, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedArchitecture, match="not supported"):
        parse_config(llama(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type 'spiral' is not supported"),
        ({"hidden_act": "cube"}, "hidden_act 'cube' is not supported"),
    ],
)
def test_a_value_that_no_implementation_has_is_a_model_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        parse_config(llama(**fields))
    assert type(raised.value) is ModelError


def test_a_wrong_number_stays_an_error() -> None:
    with pytest.raises(ModelError, match="hidden_size"):
        parse_config(llama(hidden_size=0))


@pytest.mark.parametrize(
    ("value", "kind"), [("auto", "native"), ("vllm", "native"), ("sglang", "native"), ("transformers", "transformers")]
)
def test_the_option_has_the_names_of_other_engines_too(value: str, kind: str, tmp_path: Path) -> None:
    with LLM(save_tiny("llama", tmp_path), num_blocks=50, model_impl=value) as llm:
        assert ("implementation" in llm.startup_report) == (kind == "transformers")
    assert isinstance(read_config(tmp_path), DecoderConfig)


def test_another_value_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model_impl 'onnx' is unknown; known are auto, native, transformers"):
        LLM(save_tiny("llama", tmp_path), model_impl="onnx")
