"""GGUFArchitecture: the table of architectures, and the errors for files of others."""

from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from chairlift.core.errors import ModelError, UnsupportedArchitecture, UnsupportedModel
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.gguf_architectures import GGUF_ARCHITECTURES, gguf_architecture


@pytest.mark.parametrize("name", GGUF_ARCHITECTURES)
def test_an_entry_names_an_architecture_that_is_supported(name: str) -> None:
    entry = gguf_architecture({"general.architecture": name, "general.type": "model"}, "a.gguf")
    assert entry.name == name
    assert entry.architecture in ARCHITECTURES
    assert entry.model_type in CONFIG_MAPPING
    assert not set(entry.layer_names.values()) & set(entry.layer_tensors.values())
    assert len(set(entry.layer_names.values())) == len(entry.layer_names)


def test_another_architecture_is_named_with_the_supported_ones_and_the_remedy() -> None:
    with pytest.raises(UnsupportedArchitecture) as raised:
        gguf_architecture({"general.architecture": "deepseek2"}, "deep.gguf")
    assert str(raised.value).startswith(
        f"deep.gguf has architecture 'deepseek2', and of GGUF files {', '.join(GGUF_ARCHITECTURES)} are supported; "
        "use the original model in safetensors"
    )
    assert raised.value.details["remedy"] in str(raised.value)


@pytest.mark.parametrize(
    ("metadata", "error", "text"),
    [
        ({}, ModelError, "a.gguf: general.architecture is missing"),
        ({"general.architecture": 3}, ModelError, "a.gguf: general.architecture must be a text, got 3"),
        ({"general.architecture": "clip"}, UnsupportedModel, "a.gguf is the vision or audio part of a model"),
        (
            {"general.architecture": "llama", "general.type": "adapter"}, UnsupportedModel,
            "a.gguf has general.type 'adapter', so it is not a model; use the file of the model",
        ),
    ],
)  # fmt: skip
def test_a_file_without_a_model_of_text_is_refused(metadata: dict[str, Any], error: type, text: str) -> None:
    with pytest.raises(error) as raised:
        gguf_architecture(metadata, "a.gguf")
    assert str(raised.value).startswith(text)


def test_a_name_of_a_thousand_characters_is_shown_in_part() -> None:
    with pytest.raises(UnsupportedArchitecture) as raised:
        gguf_architecture({"general.architecture": "x\n" * 1000}, "a.gguf")
    assert len(str(raised.value)) < 400
    assert "\n" not in str(raised.value)
