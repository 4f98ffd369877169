"""parse_decoder_config: a quantized checkpoint is refused with its method and a remedy."""

import pytest

from chairlift.core.errors import UnsupportedModel
from chairlift.model.config.decoder_config import parse_decoder_config
from chairlift.model.config.model_folder import ORIGINAL
from chairlift.model.config.quantized_checkpoint import check_quantization, quantization_entry
from support_shares import for_each

LLAMA = {"architectures": ["LlamaForCausalLM"]}


@for_each(
    ("quantization", "method"),
    [
        ({"quant_method": "awq", "bits": 4}, "with AWQ "),
        ({"quant_method": "gptq"}, "with GPTQ "),
        ({"quant_method": "compressed-tensors"}, "with compressed-tensors "),
        ({"bits": 4}, ""),
        (True, ""),
    ],
)
def test_the_method_of_a_quantized_checkpoint_is_named(quantization: object, method: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        parse_decoder_config({**LLAMA, "quantization_config": quantization})
    assert f"the weights are quantized {method}(quantization_config in config.json)" in caught.value.message
    assert caught.value.details["remedy"] == ORIGINAL


def test_the_older_field_of_compressed_tensors_counts() -> None:
    with pytest.raises(UnsupportedModel, match=r"with compressed-tensors \(compression_config in config\.json\)"):
        parse_decoder_config({**LLAMA, "compression_config": {"quant_method": "compressed-tensors"}})


@for_each("entry", [{"quant_method": "bitsandbytes"}, {"load_in_4bit": True}, {"load_in_8bit": True}])
def test_weights_of_bitsandbytes_are_not_refused(entry: dict[str, object]) -> None:
    content = {"quantization_config": entry}
    assert quantization_entry(content) == ("quantization_config", "bitsandbytes", entry)
    check_quantization(content)
