"""QWEN3_5: Qwen3.5 and 3.6, dense or with experts, and the text parts of their wrappers.

Three of four layers are gated delta nets. Attention has a gate on its output, and a quarter of each head rotates.
Source: transformers 5.23 models/qwen3_5 and models/qwen3_5_moe.
"""

from typing import Any

from chairlift.model.config.architectures.architecture import Architecture, TensorSource
from chairlift.model.config.architectures.decoder_fields import (
    FULL,
    LINEAR,
    LLAMA_DEFAULTS,
    check_state_kinds,
    decoder_config,
    read_head_dim,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import HEAD, DecoderConfig
from chairlift.model.config.experts_config import ExpertFields, read_experts
from chairlift.model.config.rope_config import read_ropes
from chairlift.model.config.state_layers import GatedDeltaNetConfig

DELTA_NET_DEFAULTS = {
    **LLAMA_DEFAULTS, "num_attention_heads": 16, "head_dim": 256, "max_position_embeddings": 32768,
    "eos_token_id": None, "bos_token_id": None, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "partial_rotary_factor": 0.25, "full_attention_interval": 4,
}  # fmt: skip


def delta_net_config(architecture: str, fields: ConfigReader, **own: Any) -> DecoderConfig:
    """Read the config of a decoder of gated delta nets and gated attention; `own` as in decoder_config."""
    layers, kinds = fields.size("num_hidden_layers"), fields.names("layer_types")
    if kinds is None:
        period = fields.size("full_attention_interval")
        kinds = tuple(LINEAR if (layer + 1) % period else FULL for layer in range(layers))
    check_state_kinds(kinds, LINEAR, layers)
    rope, _ = read_ropes(
        fields, fields.size("max_position_embeddings"), by_layer_type=False, head_dim=read_head_dim(fields)
    )
    state, bias = read_delta_net(fields), fields.flag("attention_bias")
    return decoder_config(
        architecture, fields, (None,) * kinds.count(FULL), rope=rope, sliding_rope=rope, qkv_bias=bias,
        output_bias=bias, head_norm=HEAD, norm_offset=1.0, has_output_gate=True,
        state_layers=tuple(state if kind == LINEAR else None for kind in kinds), **own,
    )  # fmt: skip


def read_delta_net(fields: ConfigReader) -> GatedDeltaNetConfig:
    """Read the sizes of the gated delta nets."""
    return GatedDeltaNetConfig(
        num_key_heads=fields.size("linear_num_key_heads"),
        num_value_heads=fields.size("linear_num_value_heads"),
        key_dim=fields.size("linear_key_head_dim"),
        value_dim=fields.size("linear_value_head_dim"),
        conv_width=fields.size("linear_conv_kernel_dim"),
        norm_eps=fields.number("rms_norm_eps"),
    )


def gated_shared_size(fields: ConfigReader) -> int:
    """Return the neurons of the shared expert, whose output has a gate (ExpertFields.shared_size)."""
    return fields.size("shared_expert_intermediate_size")


def gated_query_source(config: DecoderConfig, name: str) -> TensorSource | None:
    """Return where q_proj, which has a query and a gate for each head by turns, has a parameter."""
    module, _, kind = name.rpartition(".")
    if not module.endswith((".q_proj", ".gate_proj")) or ".self_attn." not in module:
        return None
    width, first = config.head_dim, 0 if module.endswith(".q_proj") else config.head_dim
    rows = [2 * width * head + first + row for head in range(config.num_heads) for row in range(width)]
    return TensorSource(f"{module.rpartition('.')[0]}.q_proj.{kind}", rows)


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    return delta_net_config(architecture, fields)


EXPERTS = ExpertFields(
    defaults={
        "shared_expert_intermediate_size": 512, "moe_intermediate_size": 512, "hidden_act": "silu",
        "num_experts": 256, "num_experts_per_tok": 8,
    },
    shared_size=gated_shared_size,
    has_shared_gate=True,
)  # fmt: skip


def _read_moe_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    experts = read_experts(EXPERTS, fields)
    return delta_net_config(architecture, fields, experts=experts)


_VISION = ("model.visual.", "visual.")

QWEN3_5 = Architecture(
    names=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    models="Qwen3.5 and 3.6, dense, the text part; layers that keep a state",
    defaults={
        **DELTA_NET_DEFAULTS, "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 32, "num_key_value_heads": 4,
    },
    read_config=_read_config,
    ignored_prefixes=_VISION,
    source=gated_query_source,
)  # fmt: skip

QWEN3_5_MOE = Architecture(
    names=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    models="Qwen3.5 and 3.6 with experts, the text part; layers that keep a state",
    defaults={
        **DELTA_NET_DEFAULTS, **EXPERTS.defaults, "vocab_size": 248320, "hidden_size": 2048,
        "intermediate_size": 512, "num_hidden_layers": 40, "num_key_value_heads": 2,
    },
    read_config=_read_moe_config,
    experts=EXPERTS,
    ignored_prefixes=_VISION,
    source=gated_query_source,
)  # fmt: skip
