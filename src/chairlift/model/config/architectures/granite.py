"""GRANITE: Granite 3: Llama's layers with multipliers. Source: transformers 5.23 models/granite."""

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
from chairlift.model.config.rope_config import lacking_feature

GRANITE_DEFAULTS = {
    **LLAMA_DEFAULTS, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}  # fmt: skip


LEAST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-3, 1e3
"""The native kernels divide by the multiplier and by its square, in float32."""


def multipliers(fields: ConfigReader) -> dict[str, float]:
    """Return the fields of DecoderConfig for Granite's four multipliers.

    Raises UnsupportedArchitecture for a factor on what layers add that no published model has.
    """
    residual = fields.number("residual_multiplier")
    if not LEAST_MULTIPLIER <= residual <= LARGEST_MULTIPLIER:
        raise lacking_feature(f"residual_multiplier {residual:g} is not supported")
    return {
        "embed_scale": fields.number("embedding_multiplier"), "residual_multiplier": residual,
        "attention_scale": fields.number("attention_multiplier"), "logits_divisor": fields.number("logits_scaling"),
    }  # fmt: skip


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    return decoder_config(
        architecture, fields, full_attention(fields), qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias"),
        **multipliers(fields),
    )  # fmt: skip


def read_gguf_multipliers(contents: GGUFContents) -> dict[str, float]:
    """Return the fields of config.json for the multipliers in a file; an absent one changes nothing."""
    read, head_dim = contents.read, contents.fields["head_dim"]
    return {
        "attention_multiplier": read.number_or_zero("attention.scale") or head_dim**-0.5,
        "embedding_multiplier": read.number_or_zero("embedding_scale") or 1.0,
        "residual_multiplier": read.number_or_zero("residual_scale") or 1.0,
        "logits_scaling": read.number_or_zero("logit_scale") or 1.0,
    }


def _read_gguf(contents: GGUFContents) -> Mapping[str, Any]:
    if not contents.read.flag_or("rope.scaling.finetuned", True):
        raise contents.read.unsupported("rope.scaling.finetuned", "is false, so no layer rotates")
    return read_gguf_multipliers(contents)


GRANITE = Architecture(
    names=("GraniteForCausalLM",),
    models="Granite 3",
    defaults=GRANITE_DEFAULTS,
    read_config=_read_config,
    gguf=GGUFArchitecture(
        name="granite", architecture="GraniteForCausalLM", model_type="granite", layer_names=LLAMA_GGUF_LAYER,
        has_paired_rows=True, has_own_scales=True, read_fields=_read_gguf, fields={"hidden_act": "silu"},
    ),
)  # fmt: skip
