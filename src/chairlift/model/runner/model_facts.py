"""model_facts: the facts about a loaded model."""

import math
from collections.abc import Mapping

from chairlift.core.model_facts import ModelFacts
from chairlift.model.backends.loaded_model import KeptCodes
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.runner_config import FLOAT8_QUANTIZATION, UNQUANTIZED
from chairlift.model.device.dtypes import dtype_bytes
from chairlift.model.loading.model_building import parameter_shapes
from chairlift.model.weights.checkpoint import EMBEDDING, HEAD
from chairlift.model.weights.float8_packer import LAYERS, takes_float8

QUANTIZED_BYTES = {"int8": 1 + 2 / 32, "int8-channel": 1.0, "int4": 1 / 2 + 4 / 32, "int6": 3 / 4 + 2 / 32}
"""Bytes of one parameter, by quantization of the native kernels; groups of 32 share a scale of two bytes,
and those of int4 a minimum of two more. With int4 the lm_head, also as a tied embedding table, has those of int6."""

FLOAT8_SCALE_BYTES = 4
"""Bytes of the scale of a row of 8-bit floats."""


def weight_bytes(
    shapes: Mapping[str, tuple[int, ...]], dtype: str, quantization: str, kept: Mapping[str, int] | None = None
) -> int:  # fmt: skip
    """Return the bytes of parameters, by name, of a dtype's name, in the quantization of the options.

    `kept` has the bytes of those whose codes are kept from the checkpoint. An embedding table that is no lm_head stays
    in the dtype.
    """
    kept = kept or {}
    is_tied = HEAD not in shapes

    def bytes_of(name: str, shape: tuple[int, ...]) -> float:
        count = math.prod(shape)
        if quantization == FLOAT8_QUANTIZATION and takes_float8([(name, shape)]):
            return count + FLOAT8_SCALE_BYTES * shape[0]
        if quantization not in QUANTIZED_BYTES or (name == EMBEDDING and not is_tied):
            return count * dtype_bytes(dtype)
        kind = "int6" if quantization == "int4" and not name.startswith(LAYERS) else quantization
        return count * QUANTIZED_BYTES[kind]

    return int(sum(kept[name] if name in kept else bytes_of(name, shape) for name, shape in shapes.items()))


def model_facts(config: ModelConfig, quantization: str, kept: KeptCodes | None = None) -> ModelFacts:
    """Return the facts about a model, whose config has the dtype as loaded; sizes only of our own modules.

    `kept` as in LoadedModel.
    """
    dtype = str(config.dtype)
    shapes = parameter_shapes(config) if isinstance(config, DecoderConfig) else {}
    num_parameters = sum(map(math.prod, shapes.values()))
    if kept is None:
        name, num_bytes = "" if quantization in UNQUANTIZED else quantization, weight_bytes(shapes, dtype, quantization)
    else:
        others = {name: shape for name, shape in shapes.items() if name not in kept.names}
        name, num_bytes = kept.type, kept.num_bytes + weight_bytes(others, dtype, quantization)
    return ModelFacts(
        architecture=config.architecture, dtype=dtype, quantization=name, num_parameters=num_parameters,
        weight_bytes=num_bytes,
    )  # fmt: skip
