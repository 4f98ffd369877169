"""QWEN3_MOE: Qwen3 with experts in all or some layers. Source: transformers 5.23 models/qwen3_moe."""

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture
from chairlift.model.config.architectures.decoder_fields import (
    GGUF_HEAD_NORMS,
    LLAMA_GGUF_ATTENTION,
    decoder_config,
    dense_layers,
    full_attention,
    same_window,
)
from chairlift.model.config.architectures.qwen2 import NO_WINDOW, QWEN2_DEFAULTS
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import HEAD, DecoderConfig
from chairlift.model.config.experts_config import ExpertFields, in_every_nth_layer, read_experts

EXPERTS = ExpertFields(
    defaults={
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "hidden_act": "silu",
        "norm_topk_prob": False, "decoder_sparse_step": 1,
    },
    sparse_layers=in_every_nth_layer,
)  # fmt: skip


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    bias = fields.flag("attention_bias")
    windows = same_window(fields) if fields.flag("use_sliding_window") else full_attention(fields)
    return decoder_config(
        architecture, fields, windows, qkv_bias=bias, output_bias=bias, head_norm=HEAD,
        experts=read_experts(EXPERTS, fields), dense_layers=dense_layers(EXPERTS, fields),
    )  # fmt: skip


QWEN3_MOE = Architecture(
    names=("Qwen3MoeForCausalLM",),
    models="Qwen3-MoE: 30B-A3B and others",
    defaults={
        **QWEN2_DEFAULTS, **EXPERTS.defaults, "vocab_size": 151936, "hidden_size": 2048,
        "intermediate_size": 6144, "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4,
    },
    read_config=_read_config,
    experts=EXPERTS,
    gguf=GGUFArchitecture(
        name="qwen3moe", architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe",
        layer_names={
            **LLAMA_GGUF_ATTENTION, **GGUF_HEAD_NORMS,
            "post_attention_layernorm": "ffn_norm",
        },
        expert_count_field="num_experts",
        fields={
            "hidden_act": "silu", "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], **NO_WINDOW,
        },
    ),
)  # fmt: skip
