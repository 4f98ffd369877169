"""check_quantization: a checkpoint quantized by a method without a format is refused with a remedy."""

import json
from pathlib import Path

import pytest

from chairlift.core.errors import UnsupportedModel
from chairlift.model.config.decoder_config import parse_decoder_config
from chairlift.model.config.model_folder import ORIGINAL
from chairlift.model.config.quantized_checkpoint import SUPPORTED_METHODS, check_quantization, folder_quantization
from support_shares import for_each

LLAMA = {"architectures": ["LlamaForCausalLM"]}


@for_each(
    ("quantization", "method"),
    [
        ({"quant_method": "awq", "bits": 4}, "with AWQ "),
        ({"quant_method": "gptq"}, "with GPTQ "),
        ({"quant_method": "bitsandbytes"}, "with bitsandbytes "),
        ({"load_in_4bit": True}, "with bitsandbytes "),
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
def test_a_method_with_a_format_is_not_refused(field: str) -> None:
    for method in SUPPORTED_METHODS:
        check_quantization({**LLAMA, field: {"quant_method": method}})


@pytest.mark.parametrize("field", ["quantization_config", "compression_config"])
def test_the_entry_of_a_folder_is_that_of_its_text_model(field: str, tmp_path: Path) -> None:
    assert folder_quantization(tmp_path) is None
    entry = {"quant_method": "fp8"}
    for content in ({field: entry}, {"text_config": {field: entry}}, {field: entry, "text_config": {}}):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert folder_quantization(tmp_path) == (field, "fp8", entry)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": 7}))
    assert folder_quantization(tmp_path) is None
