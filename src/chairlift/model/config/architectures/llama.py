"""LLAMA: Llama 1 to 3, and all models that have its layers. Source: transformers 5.23 models/llama."""

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture
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


LLAMA = Architecture(
    names=("LlamaForCausalLM",),
    models="Llama 2 and 3, and models with its layers",
    defaults=LLAMA_DEFAULTS,
    read_config=_read_config,
    gguf=GGUFArchitecture(
        name="llama", architecture="LlamaForCausalLM", model_type="llama", layer_names=LLAMA_GGUF_LAYER,
        has_paired_rows=True, fields={"hidden_act": "silu"},
    ),
)  # fmt: skip
"""GGUF files of Mistral models are `llama`, too."""
