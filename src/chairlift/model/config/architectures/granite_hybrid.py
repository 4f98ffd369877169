"""GRANITE_HYBRID: Granite 4: Mamba-2 layers beside attention, Granite's multipliers, and experts in some models.

Source: transformers 5.23 models/granitemoehybrid.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture, GGUFContents, TensorSource
from chairlift.model.config.architectures.decoder_fields import (
    FULL,
    LINEAR,
    LLAMA_GGUF_LAYER,
    check_state_kinds,
    decoder_config,
)
from chairlift.model.config.architectures.granite import GRANITE_DEFAULTS, multipliers, read_gguf_multipliers
from chairlift.model.config.config_reader import ConfigReader, invalid_field
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.experts_config import ExpertFields, read_experts, softmax_of_chosen
from chairlift.model.config.rope_config import lacking_feature
from chairlift.model.config.state_layers import Mamba2Config

_KINDS = {"mamba": LINEAR, "attention": FULL}
"""Older names of the entries of layer_types, which older files call layers_block_type."""


def _shared_size(fields: ConfigReader) -> int:
    return fields.count("shared_intermediate_size")


GRANITE_EXPERTS = ExpertFields(
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 11008, "hidden_act": "silu"},
    size="intermediate_size",
    router=softmax_of_chosen,
    renamed=(
        (r"\.block_sparse_moe\.router\.(layer\.)?weight$", ".mlp.gate.weight"),
        (r"\.block_sparse_moe\.(input_linear\.weight|experts\.gate_up_proj)$", ".mlp.experts.gate_up_proj"),
        (r"\.block_sparse_moe\.(output_linear\.weight|experts\.down_proj)$", ".mlp.experts.down_proj"),
        (r"\.shared_mlp\.input_linear\.weight$", ".mlp.shared_expert.gate_up_proj.weight"),
        (r"\.shared_mlp\.output_linear\.weight$", ".mlp.shared_expert.down_proj.weight"),
    ),
)
"""Experts of GraniteMoeForCausalLM."""

EXPERTS = replace(
    GRANITE_EXPERTS, defaults={**GRANITE_EXPERTS.defaults, "shared_intermediate_size": 1024}, shared_size=_shared_size
)


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    layers = fields.size("num_hidden_layers")
    kinds = fields.names("layer_types") or fields.names("layers_block_type") or (LINEAR,) * layers
    kinds = tuple(_KINDS.get(kind, kind) for kind in kinds)
    check_state_kinds(kinds, LINEAR, layers)
    position = fields.get("position_embedding_type")
    if position not in (None, "rope", "nope"):
        raise lacking_feature(f"position_embedding_type {position!r} is not supported; supported are rope and nope")
    bias, state, experts = fields.flag("attention_bias"), _read_mamba(fields), read_experts(EXPERTS, fields)
    return decoder_config(
        architecture, fields, (None,) * kinds.count(FULL), qkv_bias=bias, output_bias=bias, experts=experts,
        unrotated_layers=() if position == "rope" else tuple(range(layers)),
        state_layers=tuple(state if kind == LINEAR else None for kind in kinds),
        intermediate_size=fields.size("shared_intermediate_size"),
        **multipliers(fields),
    )  # fmt: skip


def _read_mamba(fields: ConfigReader) -> Mamba2Config:
    heads, inner = fields.size("mamba_n_heads"), fields.size("mamba_expand") * fields.size("hidden_size")
    head_dim = inner // heads if fields.get("mamba_d_head") == "auto" else fields.size("mamba_d_head")
    if heads * head_dim != inner:
        raise ModelError(f"config.json: {heads} heads of {head_dim} are not mamba_expand times hidden_size, {inner}")
    least, largest = _time_step_limits(fields.get("time_step_limit"))
    return Mamba2Config(
        num_heads=heads, head_dim=head_dim, state_size=fields.size("mamba_d_state"),
        num_groups=fields.size("mamba_n_groups"), conv_width=fields.size("mamba_d_conv"),
        conv_bias=fields.flag("mamba_conv_bias"), projection_bias=fields.flag("mamba_proj_bias"),
        min_dt=least, max_dt=largest, norm_eps=fields.number("rms_norm_eps"),
    )  # fmt: skip


def _time_step_limits(stored: Any) -> tuple[float, float]:
    """Return the limits of the time step; transformers writes infinity as an object."""
    if stored is None:
        return 0.0, math.inf
    if not isinstance(stored, list):
        raise invalid_field("time_step_limit", f"must be a list of two numbers, got {stored!r}")
    limits = [math.inf if each == {"__float__": "Infinity"} else each for each in stored if not isinstance(each, bool)]
    if len(limits) != 2 or not all(isinstance(each, int | float) for each in limits) or not limits[0] <= limits[1]:
        raise invalid_field("time_step_limit", f"must be a list of two numbers, got {stored!r}")
    try:
        return float(limits[0]), float(limits[1])
    except OverflowError:
        raise invalid_field("time_step_limit", f"must be a list of two numbers, got {stored!r:.60}") from None


def _source(config: DecoderConfig, name: str) -> TensorSource | None:
    """Return where a model without experts has its MLP; experts have names of their own (stacked_experts.py)."""
    layer, found, module = name.partition(".mlp.")
    size = config.intermediate_size
    sources = {
        "gate_proj.weight": TensorSource(f"{layer}.shared_mlp.input_linear.weight", range(size)),
        "up_proj.weight": TensorSource(f"{layer}.shared_mlp.input_linear.weight", range(size, 2 * size)),
        "down_proj.weight": TensorSource(f"{layer}.shared_mlp.output_linear.weight"),
    }
    return sources.get(module) if found and config.experts is None else None


_GGUF_LAYER = {
    **LLAMA_GGUF_LAYER, "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d", "mamba.norm": "ssm_norm",
    "mamba.out_proj": "ssm_out",
}  # fmt: skip

_GGUF_TENSORS = {
    "mamba.A_log": "ssm_a", "mamba.D": "ssm_d", "mamba.dt_bias": "ssm_dt.bias", "mamba.conv1d.bias": "ssm_conv1d.bias",
}  # fmt: skip


def _read_gguf(contents: GGUFContents) -> Mapping[str, Any]:
    """Return the fields of Mamba-2 layers, experts and multipliers."""
    read, fields, shapes = contents.read, contents.fields, contents.shapes
    layers, hidden = fields["num_hidden_layers"], fields["hidden_size"]
    kv_heads = read.layer_counts("attention.head_count_kv", layers)
    inner, heads = read.size("ssm.inner_size"), read.size("ssm.time_step_rank")
    if inner % hidden or inner % heads:
        raise read.unsupported("ssm.inner_size", f"is {inner}, not a multiple of {hidden} and of {heads} heads")
    width, state_size, groups = read.size("ssm.conv_kernel"), read.size("ssm.state_size"), read.size("ssm.group_count")
    contents.check_shape("ssm.state_size", "ssm_conv1d", inner + 2 * groups * state_size, width)
    rotates = read.flag_or("rope.scaling.finetuned", True)
    first = kv_heads.index(0) if 0 in kv_heads else 0
    return {
        "layer_types": [FULL if count else LINEAR for count in kv_heads],
        "position_embedding_type": "rope" if rotates else "nope",
        "mamba_n_heads": heads, "mamba_d_head": inner // heads, "mamba_expand": inner // hidden,
        "mamba_d_state": state_size, "mamba_n_groups": groups, "mamba_d_conv": width, "mamba_proj_bias": False,
        "mamba_conv_bias": f"blk.{first}.ssm_conv1d.bias" in shapes,
        "num_local_experts": fields.get("num_local_experts", 0),
        "shared_intermediate_size": read.size_or("expert_shared_feed_forward_length", fields["intermediate_size"]),
        **read_gguf_multipliers(contents),
    }  # fmt: skip


GRANITE_HYBRID = Architecture(
    names=("GraniteMoeHybridForCausalLM",),
    models="Granite 4, with and without experts; layers that keep a state",
    defaults={
        **GRANITE_DEFAULTS, **EXPERTS.defaults, "mamba_n_heads": 128,
        "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": "auto", "mamba_d_conv": 4, "mamba_expand": 2,
        "mamba_conv_bias": True, "mamba_proj_bias": False,
    },
    read_config=_read_config,
    experts=EXPERTS,
    source=_source,
    gguf=GGUFArchitecture(
        name="granitehybrid", architecture="GraniteMoeHybridForCausalLM", model_type="granitemoehybrid",
        layer_names=_GGUF_LAYER, layer_tensors=_GGUF_TENSORS, has_paired_rows=True, state_kind=LINEAR,
        expert_count_field="num_local_experts", expert_size_field="intermediate_size", has_own_scales=True,
        read_fields=_read_gguf, fields={"hidden_act": "silu"},
    ),
)  # fmt: skip
