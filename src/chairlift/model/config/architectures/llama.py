"""LLAMA: Llama 1 to 3, and all models that have its layers. Source: transformers 5.23 models/llama."""

from collections.abc import Mapping
from typing import Any

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture, GGUFContents
from chairlift.model.config.architectures.decoder_fields import (
    LLAMA_DEFAULTS,
    LLAMA_GGUF_LAYER,
    decoder_config,
    full_attention,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    return decoder_config(
        architecture, fields, full_attention(fields), qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias")
    )


def _read_gguf(contents: GGUFContents) -> Mapping[str, Any]:
    """Return the class of a file with experts, which is Mixtral's."""
    has_experts = "num_local_experts" in contents.fields
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"} if has_experts else {}


LLAMA = Architecture(
    names=("LlamaForCausalLM",),
    models="Llama 2 and 3, and models with its layers",
    defaults=LLAMA_DEFAULTS,
    read_config=_read_config,
    gguf=GGUFArchitecture(
        name="llama", architecture="LlamaForCausalLM", model_type="llama", layer_names=LLAMA_GGUF_LAYER,
        has_paired_rows=True, expert_count_field="num_local_experts", expert_size_field="intermediate_size",
        read_fields=_read_gguf, fields={"hidden_act": "silu"},
    ),
)  # fmt: skip
"""GGUF files of Mistral and Mixtral models are `llama`, too."""
