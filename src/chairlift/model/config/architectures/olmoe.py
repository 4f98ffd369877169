"""OLMOE: Llama's layers with experts, and norms over all queries and all keys of a token.

Source: transformers 5.23 models/olmoe.
"""

from collections.abc import Mapping
from typing import Any

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture, GGUFContents
from chairlift.model.config.architectures.decoder_fields import (
    GGUF_HEAD_NORMS,
    LLAMA_GGUF_ATTENTION,
    decoder_config,
    full_attention,
)
from chairlift.model.config.architectures.olmo2 import OLMO_DEFAULTS
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import PROJECTION, DecoderConfig
from chairlift.model.config.experts_config import ExpertFields, read_experts
from chairlift.model.config.rope_config import lacking_feature

EXPERTS = ExpertFields(
    defaults={
        "num_experts": 64, "num_experts_per_tok": 8, "intermediate_size": 2048, "hidden_act": "silu",
        "norm_topk_prob": False,
    },
    size="intermediate_size",
)  # fmt: skip


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    if fields.number_or_none("clip_qkv") is not None:
        raise lacking_feature("clip_qkv is not supported")
    bias = fields.flag("attention_bias")
    return decoder_config(
        architecture, fields, full_attention(fields), qkv_bias=bias, output_bias=bias, head_norm=PROJECTION,
        experts=read_experts(EXPERTS, fields),
    )  # fmt: skip


def _read_gguf(contents: GGUFContents) -> Mapping[str, Any]:
    if limit := contents.read.number_or_zero("attention.clamp_kqv"):
        raise contents.read.unsupported("attention.clamp_kqv", f"is {limit}")
    return {}


OLMOE = Architecture(
    names=("OlmoeForCausalLM",),
    models="OLMoE",
    defaults={
        **OLMO_DEFAULTS, **EXPERTS.defaults, "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 16, "max_position_embeddings": 4096,
    },
    read_config=_read_config,
    experts=EXPERTS,
    gguf=GGUFArchitecture(
        name="olmoe", architecture="OlmoeForCausalLM", model_type="olmoe",
        layer_names={
            **LLAMA_GGUF_ATTENTION, **GGUF_HEAD_NORMS,
            "post_attention_layernorm": "ffn_norm",
        },
        expert_count_field="num_experts", expert_size_field="intermediate_size", read_fields=_read_gguf,
        fields={"hidden_act": "silu", "norm_topk_prob": False},
    ),
)  # fmt: skip
