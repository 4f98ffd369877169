"""Experts of architectures whose decoders transformers' modules compute, as these describe them.

The module of an architecture takes its entry from here when its decoder becomes one of Chairlift's own. Sources:
transformers 5.23 models/qwen2_moe, granitemoe, deepseek_v3, glm4_moe, glm4_moe_lite and lfm2_moe.
"""

from dataclasses import replace
from functools import partial

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.qwen3_5 import gated_shared_size
from chairlift.model.config.config_reader import ConfigReader, invalid_field
from chairlift.model.config.experts_config import (
    SIGMOID,
    ExpertFields,
    ExpertRouterConfig,
    in_every_nth_layer,
)


def _grouped_sigmoid(router: ExpertRouterConfig, fields: ConfigReader) -> ExpertRouterConfig:
    groups, of_token = fields.size("n_group"), fields.size("topk_group")
    if router.num_experts % groups or of_token > groups:
        raise ModelError(f"config.json: {of_token} of {groups} groups of {router.num_experts} experts")
    if of_token * (router.num_experts // groups) < router.experts_per_token:
        raise ModelError(f"config.json: {of_token} groups have fewer than {router.experts_per_token} experts")
    if groups > 1 and router.num_experts // groups < 2:
        raise ModelError(f"config.json: {groups} groups of {router.num_experts} experts have one expert each")
    return replace(
        router, scoring=SIGMOID, float32="product", renormalizes=fields.flag("norm_topk_prob"), sum_offset=1e-20,
        scaling_factor=fields.number("routed_scaling_factor"), has_correction_bias=True, num_groups=groups,
        groups_per_token=of_token,
    )  # fmt: skip


def _several_shared(fields: ConfigReader) -> int:
    return fields.count("n_shared_experts") * fields.size("moe_intermediate_size")


def _behind_dense(name: str, fields: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    num_dense = fields.count(name)
    return tuple(layer >= num_dense for layer in range(num_layers))


def _by_kind(fields: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    kinds = fields.names("mlp_layer_types")
    if kinds is None:
        return tuple(layer > 0 for layer in range(num_layers))
    if len(kinds) != num_layers or not set(kinds) <= {"dense", "sparse"}:
        raise invalid_field("mlp_layer_types", f"must be dense or sparse for each of {num_layers} layers")
    return tuple(kind == "sparse" for kind in kinds)


def _biased_sigmoid(router: ExpertRouterConfig, fields: ConfigReader) -> ExpertRouterConfig:
    return replace(
        router, scoring=SIGMOID, float32="", renormalizes=fields.flag("norm_topk_prob"), sum_offset=1e-6,
        scaling_factor=fields.number("routed_scaling_factor"), has_correction_bias=fields.flag("use_expert_bias"),
    )  # fmt: skip


def _silu(fields: ConfigReader) -> str:
    return "silu"


QWEN2_MOE_EXPERTS = ExpertFields(
    defaults={
        "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "hidden_act": "silu",
        "shared_expert_intermediate_size": 5632, "norm_topk_prob": False, "decoder_sparse_step": 1,
    },
    shared_size=gated_shared_size,
    has_shared_gate=True,
    sparse_layers=in_every_nth_layer,
)  # fmt: skip

DEEPSEEK_V3_EXPERTS = ExpertFields(
    defaults={
        "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
        "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
        "first_k_dense_replace": 3, "hidden_act": "silu",
    },
    router=_grouped_sigmoid,
    shared_size=_several_shared,
    sparse_layers=partial(_behind_dense, "first_k_dense_replace"),
    renamed=((r"\.mlp\.shared_experts\.", ".mlp.shared_expert."),),
)  # fmt: skip

GLM4_MOE_EXPERTS = replace(
    DEEPSEEK_V3_EXPERTS,
    defaults={
        **DEEPSEEK_V3_EXPERTS.defaults, "n_routed_experts": 128, "moe_intermediate_size": 1408,
        "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    },
)  # fmt: skip

GLM4_MOE_LITE_EXPERTS = replace(
    GLM4_MOE_EXPERTS,
    defaults={
        **GLM4_MOE_EXPERTS.defaults, "n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
        "routed_scaling_factor": 1.8,
    },
    sparse_layers=_by_kind,
)  # fmt: skip

LFM2_MOE_EXPERTS = ExpertFields(
    defaults={
        "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "use_expert_bias": True,
        "norm_topk_prob": True, "routed_scaling_factor": 1.0, "num_dense_layers": 2,
    },
    router=_biased_sigmoid,
    activation=_silu,
    sparse_layers=partial(_behind_dense, "num_dense_layers"),
    renamed=(
        (r"\.feed_forward\.expert_bias$", ".mlp.gate.e_score_correction_bias"), (r"\.feed_forward\.", ".mlp."),
    ),
)  # fmt: skip
