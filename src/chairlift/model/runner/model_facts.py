"""model_facts: the facts about a loaded model."""

import math

from chairlift.core.model_facts import ModelFacts
from chairlift.model.dtypes import dtype_bytes
from chairlift.model.loading.decoder_config import DecoderConfig
from chairlift.model.loading.model_config import ModelConfig
from chairlift.model.loading.registry import parameter_shapes

QUANTIZED_BYTES = {"int8": 1 + 2 / 32, "int8-channel": 1.0}
"""Bytes of one parameter, by quantization; groups of 32 share a scale of two bytes."""


def weight_bytes(num_parameters: int, dtype: str, quantization: str) -> int:
    """Return the bytes of weights of a dtype's name, in the quantization of the options."""
    return int(num_parameters * QUANTIZED_BYTES.get(quantization, dtype_bytes(dtype)))


def model_facts(config: ModelConfig, quantization: str) -> ModelFacts:
    """Return the facts about a model, whose config has the dtype as loaded; sizes only of our own modules."""
    dtype = str(config.dtype)
    shapes = parameter_shapes(config) if isinstance(config, DecoderConfig) else {}
    num_parameters = sum(map(math.prod, shapes.values()))
    return ModelFacts(
        architecture=config.architecture, dtype=dtype, quantization="" if quantization == "none" else quantization,
        num_parameters=num_parameters, weight_bytes=weight_bytes(num_parameters, dtype, quantization),
    )  # fmt: skip
