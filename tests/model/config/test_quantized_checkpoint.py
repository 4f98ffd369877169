"""A quantized checkpoint is refused with its method and a remedy, unless a format reads it; the entry of a folder."""

import json
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError, ModelError, UnsupportedModel
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.gguf_folder import gguf_folder
from chairlift.model.config.model_folder import ORIGINAL
from chairlift.model.config.quantized_checkpoint import (
    SUPPORTED_METHODS,
    check_method,
    check_quantization,
    folder_quantization,
    quantization_entry,
)
from support_gguf import smollm2_file
from support_shares import for_each

LLAMA = {"architectures": ["LlamaForCausalLM"]}


@for_each(
    ("quantization", "method"),
    [
        ({"quant_method": "quip", "bits": 4}, "with quip "),
        ({"quant_method": "quark"}, "with quark "),
        ({"bits": 4}, ""),
        (True, ""),
    ],
)
def test_the_method_of_a_quantized_checkpoint_is_named(quantization: object, method: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        parse_decoder_config({**LLAMA, "quantization_config": quantization})
    assert f"the weights are quantized {method}(quantization_config in config.json)" in caught.value.message
    assert caught.value.details["remedy"] == ORIGINAL


def test_the_older_field_counts() -> None:
    with pytest.raises(UnsupportedModel, match=r"with quark \(compression_config in config\.json\)"):
        parse_decoder_config({**LLAMA, "compression_config": {"quant_method": "quark"}})


@pytest.mark.parametrize("field", ["quantization_config", "compression_config"])
def test_the_entry_of_a_folder_is_that_of_its_text_model(field: str, tmp_path: Path) -> None:
    assert folder_quantization(tmp_path) is None
    entry = {"quant_method": "fp8"}
    for content in ({field: entry}, {"text_config": {field: entry}}, {field: entry, "text_config": {}}):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert folder_quantization(tmp_path) == (f"{field} in config.json", "fp8", entry)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": 7}))
    assert folder_quantization(tmp_path) is None


@for_each("entry", [{"quant_method": "bitsandbytes"}, {"load_in_4bit": True}, {"load_in_8bit": True}])
def test_weights_of_bitsandbytes_are_not_refused(entry: dict[str, object]) -> None:
    content = {"quantization_config": entry}
    assert quantization_entry(content) == ("quantization_config", "bitsandbytes", entry)
    check_quantization(content)


@pytest.mark.parametrize("method", SUPPORTED_METHODS)
def test_a_method_with_a_format_is_accepted(method: str) -> None:
    check_quantization({"quantization_config": {"quant_method": method}})


def test_the_entry_of_a_folder_is_in_config_json_or_in_an_older_file(tmp_path: Path) -> None:
    assert folder_quantization(tmp_path) is None
    (tmp_path / "config.json").write_text("{}")
    assert folder_quantization(tmp_path) is None
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4}))
    assert folder_quantization(tmp_path) == ("quantize_config.json", "gptq", {"bits": 4})
    other = {"bits": 4, "quant_method": "awq"}
    (tmp_path / "quantize_config.json").write_text(json.dumps(other))
    assert folder_quantization(tmp_path) == ("quantize_config.json", "awq", other)
    (tmp_path / "quant_config.json").write_text(json.dumps({"w_bit": 4}))
    assert folder_quantization(tmp_path) == ("quant_config.json", "awq", {"w_bit": 4})
    entry = {"quant_method": "gptq"}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": entry}))
    assert folder_quantization(tmp_path) == ("quantization_config in config.json", "gptq", entry)


def test_an_older_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "quant_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot read .*quant_config\.json"):
        folder_quantization(tmp_path)


@pytest.mark.parametrize(("name", "method"), [("awq_marlin", "awq"), ("gptq", "gptq")])
def test_the_name_of_a_method_is_that_of_the_checkpoint_or_one_sentence(name: str, method: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": method}}))
    check_method(tmp_path, name)
    for other, has in (
        ({"quantization_config": {"quant_method": "fp8"}}, "is quantized by fp8"),
        ({}, "has no quantized"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(other))
        with pytest.raises(ConfigError, match=f"quantization '{name}' is that of another checkpoint: the model {has}"):
            check_method(tmp_path, name)
    with pytest.raises(ConfigError, match="has no quantized weights; leave quantization out"):
        check_method(None, name)


def test_a_gguf_file_has_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_CACHE", str(tmp_path / "cache"))
    folder = gguf_folder(smollm2_file())
    check_method(folder, "gguf")
    with pytest.raises(ConfigError, match="'awq' is that of another checkpoint: the model is quantized by gguf"):
        check_method(folder, "awq")
