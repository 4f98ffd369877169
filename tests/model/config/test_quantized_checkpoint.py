"""A quantized checkpoint is refused with its method and a remedy, unless a format reads it; the entry of a folder."""

import json
from pathlib import Path

import pytest

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.decoder_config import parse_decoder_config
from chairlift.model.config.model_folder import ORIGINAL
from chairlift.model.config.quantized_checkpoint import (
    SUPPORTED_METHODS,
    check_quantization,
    folder_quantization,
    quantization_entry,
)
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
