"""GPT_OSS: experts with biases, a window in every second layer, and a sink for each query head.

Source: transformers 5.23 models/gpt_oss.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture, GGUFContents
from chairlift.model.config.architectures.decoder_fields import (
    LLAMA_DEFAULTS,
    LLAMA_GGUF_ATTENTION,
    decoder_config,
    layer_windows,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.experts_config import (
    CLAMPED_SWIGLU,
    SWIGLU_LIMIT,
    SWIGLU_SLOPE,
    ExpertFields,
    ExpertRouterConfig,
    read_experts,
    softmax_of_chosen,
)
from chairlift.model.config.rope_config import lacking_feature


def _router(router: ExpertRouterConfig, fields: ConfigReader) -> ExpertRouterConfig:
    return replace(softmax_of_chosen(router, fields), float32="", has_bias=True)


def _activation(fields: ConfigReader) -> str:
    limit, slope = fields.number("swiglu_limit"), fields.number("swiglu_alpha")
    if (limit, slope) != (SWIGLU_LIMIT, SWIGLU_SLOPE):
        raise lacking_feature(
            f"swiglu_limit {limit} and swiglu_alpha {slope} are not supported; "
            f"supported are {SWIGLU_LIMIT} and {SWIGLU_SLOPE}"
        )
    return CLAMPED_SWIGLU


EXPERTS = ExpertFields(
    defaults={
        "num_local_experts": 128, "num_experts_per_tok": 4, "intermediate_size": 2880, "swiglu_limit": SWIGLU_LIMIT,
        "swiglu_alpha": SWIGLU_SLOPE,
    },
    size="intermediate_size",
    router=_router,
    activation=_activation,
    has_bias=True,
    renamed=((r"\.mlp\.router\.", ".mlp.gate."),),
    alternates=True,
)  # fmt: skip


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    return decoder_config(
        architecture, fields, layer_windows(fields, lambda layer: layer % 2 == 0), qkv_bias=bias, output_bias=bias,
        norm_in_float32=True, has_sinks=True, experts=read_experts(EXPERTS, fields),
    )  # fmt: skip


def _read_gguf(contents: GGUFContents) -> Mapping[str, Any]:
    """Return a rotation whose range is not rounded to whole dimensions."""
    scaling = contents.fields["rope_scaling"]
    if scaling is None:
        return {"rope_scaling": {"rope_type": "default"}}
    return {"rope_scaling": {**scaling, "truncate": False}}


GPT_OSS = Architecture(
    names=("GptOssForCausalLM",),
    models="gpt-oss, also with MXFP4 experts",
    defaults={
        **LLAMA_DEFAULTS, **EXPERTS.defaults, "vocab_size": 201088, "hidden_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": 128, "attention_bias": True,
        "eos_token_id": None, "bos_token_id": None, "rope_theta": 150000.0,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4096,
        },
    },
    read_config=_read_config,
    experts=EXPERTS,
    gguf=GGUFArchitecture(
        name="gpt-oss", architecture="GptOssForCausalLM", model_type="gpt_oss",
        layer_names={**LLAMA_GGUF_ATTENTION, "post_attention_layernorm": "post_attention_norm"},
        layer_tensors={"self_attn.sinks": "attn_sinks.weight"}, full_layer_period=2,
        expert_count_field="num_local_experts", expert_size_field="intermediate_size", exceeds_float16=True,
        read_fields=_read_gguf,
    ),
)  # fmt: skip
