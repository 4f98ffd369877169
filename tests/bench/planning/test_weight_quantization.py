"""weight_bits: the bits of each quantization with its scales, also in ModelMemory; unknown formats are errors."""

import math
from typing import Any

import pytest

from chairlift.bench.planning.model_memory import ModelMemory, check_dtype
from chairlift.bench.planning.model_shape import shape_of_content
from chairlift.bench.planning.weight_quantization import weight_bits
from chairlift.core.errors import ConfigError
from support_planning import TINY, published_shape
from support_shares import for_each


def memory(name: str, **options: Any) -> ModelMemory:
    return ModelMemory(shape=published_shape(name), **{"dtype": "bfloat16", **options})


@for_each(
    ("quantization", "bits"),
    [
        ({"quant_method": "fp8"}, 8), ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 4 + 20 / 64), ({"quant_method": "mxfp4"}, 4.25),
        ({"load_in_4bit": True}, 4), ({"load_in_8bit": True}, 8), ({"quant_method": "compressed-tensors"}, 8),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 128, "type": "int"}}}}, 4 + 16 / 128),
        ({"quant_method": "compressed-tensors", "config_groups": {
            "a": {"weights": {"num_bits": 4, "group_size": 128}}, "b": {"weights": {"num_bits": 8}}}}, 8),
        ({"quant_method": "compressed-tensors", "config_groups": ["x"]}, 8),
    ],
)  # fmt: skip
def test_bits_of_quantized_weights(quantization: dict[str, Any], bits: float) -> None:
    assert weight_bits(quantization) == pytest.approx(bits)
    shape = shape_of_content({**TINY, "model_type": "llama", "quantization_config": quantization})
    quantized = ModelMemory(shape=shape, dtype="bfloat16")
    rest = 2 * (shape.parameters - shape.matrices)
    assert quantized.weights == math.ceil(rest + shape.matrices * bits / 8) and quantized.is_quantized


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: memory("Qwen3-0.6B", kv_cache_dtype="int8"), "unknown kv_cache_dtype 'int8'; available are auto, fp8"),
        (lambda: memory("Qwen3-0.6B", kv_cache_dtype="fp8", quantization="int8"),
         "kv_cache_dtype 'fp8' is not for the native kernels, which quantization 'int8' selects"),
        (lambda: check_dtype("int3"), "dtype 'int3' is unknown"),
        (lambda: memory("Qwen3-0.6B", quantization="int2"), "unknown quantization 'int2'; available are auto, none"),
        (lambda: weight_bits({"quant_method": "new"}), "the bits of quant_method 'new' are unknown"),
    ],
)  # fmt: skip
def test_unknown_formats_are_errors(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
