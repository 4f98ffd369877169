"""read_config: which implementation the option `model_impl` and config.json choose."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from chairlift.model.loading.decoder_config import DecoderConfig
from chairlift.model.loading.model_impl import parse_config, read_config
from chairlift.model.loading.transformers_config import TransformersConfig
from support_models import LONGROPE

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}  # fmt: skip
OLMO2 = LLAMA | {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}

LACKING = [
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
    ({"rope_parameters": LONGROPE}, "rope_type 'longrope' is not supported"),
    ({"rope_scaling": LONGROPE | {"type": "su", "rope_type": None}}, "type 'su' is not supported"),
    ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
]
"""Fields of Llama that Chairlift's own implementation lacks."""


@pytest.mark.parametrize(
    ("content", "model_impl", "kind"),
    [
        (LLAMA, "auto", DecoderConfig), (LLAMA, "native", DecoderConfig), (LLAMA, "transformers", TransformersConfig),
        (OLMO2, "auto", TransformersConfig), (OLMO2, "transformers", TransformersConfig),
    ],
)  # fmt: skip
def test_auto_is_chairlifts_own_where_it_fits(content: dict[str, Any], model_impl: str, kind: type) -> None:
    assert type(parse_config(content, model_impl)) is kind


def test_native_refuses_an_architecture_that_it_lacks() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"Olmo2ForCausalLM.* supported are LlamaForCausalLM"):
        parse_config(OLMO2, "native")


@pytest.mark.parametrize(("fields", "message"), LACKING)
def test_a_feature_that_the_own_implementation_lacks_goes_to_transformers(fields: dict[str, Any], message: str) -> None:
    assert type(parse_config(LLAMA | fields)) is TransformersConfig
    with pytest.raises(UnsupportedArchitecture, match=message):
        parse_config(LLAMA | fields, "native")


@pytest.mark.parametrize(("fields", "message"), LACKING)
def test_without_transformers_the_lacking_feature_is_named(
    fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedArchitecture, match=message):
        parse_config(LLAMA | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type 'spiral' is not supported"),
        ({"hidden_act": "cube"}, "hidden_act 'cube' is not supported"),
        ({"num_attention_heads": 5, "num_key_value_heads": 2}, "cannot share"),
    ],
)
def test_a_wrong_value_is_an_error_of_the_own_implementation(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        parse_config(LLAMA | fields)
    assert type(caught.value) is ModelError


def test_a_folder_is_read_for_the_option(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert type(read_config(tmp_path)) is DecoderConfig
    assert type(read_config(tmp_path, "transformers")) is TransformersConfig
