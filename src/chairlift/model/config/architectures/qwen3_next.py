"""QWEN3_NEXT: Qwen3.5 with experts, whose delta nets have rows of several projections grouped by head.

Source: transformers 5.23 models/qwen3_next.
"""

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture, TensorSource
from chairlift.model.config.architectures.decoder_fields import LINEAR, dense_layers
from chairlift.model.config.architectures.qwen3_5 import (
    DELTA_NET_DEFAULTS,
    DELTA_NET_GGUF_LAYER,
    DELTA_NET_GGUF_TENSORS,
    delta_net_config,
    gated_query_source,
    gated_shared_size,
    read_gguf_with_experts,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.experts_config import ExpertFields, in_every_nth_layer, read_experts
from chairlift.model.config.state_layers import GatedDeltaNetConfig, ba_row_order, qkvz_row_order

EXPERTS = ExpertFields(
    defaults={
        "shared_expert_intermediate_size": 512, "moe_intermediate_size": 512, "hidden_act": "silu",
        "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": True, "decoder_sparse_step": 1,
    },
    shared_size=gated_shared_size,
    has_shared_gate=True,
    sparse_layers=in_every_nth_layer,
)  # fmt: skip


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    return delta_net_config(
        architecture, fields, experts=read_experts(EXPERTS, fields),
        dense_layers=dense_layers(EXPERTS, fields),
    )  # fmt: skip


def _source(config: DecoderConfig, name: str) -> TensorSource | None:
    layer, found, module = name.partition(".linear_attn.")
    if not found:
        return gated_query_source(config, name)
    state = next(each for each in config.state_layers if isinstance(each, GatedDeltaNetConfig))
    if module in ("in_proj_qkv.weight", "in_proj_z.weight"):
        stored, rows, first = "in_proj_qkvz", qkvz_row_order(state), state.channels
    elif module in ("in_proj_b.weight", "in_proj_a.weight"):
        stored, rows, first = "in_proj_ba", ba_row_order(state), state.num_value_heads
    else:
        return None
    is_first = module in ("in_proj_qkv.weight", "in_proj_b.weight")
    return TensorSource(f"{layer}.linear_attn.{stored}.weight", rows[:first] if is_first else rows[first:])


QWEN3_NEXT = Architecture(
    names=("Qwen3NextForCausalLM",),
    models="Qwen3-Next; layers that keep a state",
    defaults={
        **DELTA_NET_DEFAULTS, **EXPERTS.defaults, "vocab_size": 151936, "hidden_size": 2048,
        "intermediate_size": 5632, "num_hidden_layers": 48, "num_key_value_heads": 2,
    },
    read_config=_read_config,
    experts=EXPERTS,
    source=_source,
    gguf=GGUFArchitecture(
        name="qwen3next", architecture="Qwen3NextForCausalLM", model_type="qwen3_next",
        layer_names={
            **DELTA_NET_GGUF_LAYER, "linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.in_proj_ba": "ssm_ba",
        },
        layer_tensors=DELTA_NET_GGUF_TENSORS, norm_offset=1.0, has_partial_rotation=True, state_kind=LINEAR,
        expert_count_field="num_experts", read_fields=read_gguf_with_experts,
        fields={"hidden_act": "silu", "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
)  # fmt: skip
