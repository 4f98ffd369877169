"""QWEN3_5: Qwen3.5 and 3.6, dense or with experts, and the text parts of their wrappers.

Three of four layers are gated delta nets. Attention has a gate on its output, and a quarter of each head rotates.
Source: transformers 5.23 models/qwen3_5 and models/qwen3_5_moe.
"""

from collections.abc import Mapping
from typing import Any

from chairlift.model.config.architectures.architecture import (
    Architecture,
    FileOrder,
    GGUFArchitecture,
    GGUFContents,
    TensorSource,
)
from chairlift.model.config.architectures.decoder_fields import (
    FULL,
    GGUF_HEAD_NORMS,
    LINEAR,
    LLAMA_DEFAULTS,
    LLAMA_GGUF_ATTENTION,
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


DELTA_NET_GGUF_LAYER = {
    **LLAMA_GGUF_ATTENTION, **GGUF_HEAD_NORMS,
    "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}  # fmt: skip
"""GGUFArchitecture.layer_names of gated delta nets and gated attention."""

DELTA_NET_GGUF_TENSORS = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}

_GGUF_LAYER = {
    **DELTA_NET_GGUF_LAYER, "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def _read_gguf(contents: GGUFContents) -> dict[str, Any]:
    """Return the fields of gated delta nets, and the kinds of layers."""
    read, fields, layers = contents.read, contents.fields, contents.fields["num_hidden_layers"]
    inner, heads = read.size("ssm.inner_size"), read.size("ssm.time_step_rank")
    if inner % heads:
        raise read.unsupported("ssm.inner_size", f"is {inner}, not a multiple of {heads} heads")
    width, key_dim, key_heads = read.size("ssm.conv_kernel"), read.size("ssm.state_size"), read.size("ssm.group_count")
    contents.check_shape("ssm.state_size", "ssm_conv1d", inner + 2 * key_heads * key_dim, width)
    rows = 2 * fields["num_attention_heads"] * fields["head_dim"]  # queries and gates
    contents.check_shape("attention.head_count", "attn_q", rows, fields["hidden_size"])
    if read.is_list("attention.recurrent_layers"):
        has_state = read.layer_flags("attention.recurrent_layers", read.size("block_count"))
    else:
        period = read.size_or("full_attention_interval", 4)
        has_state = [(layer + 1) % period != 0 for layer in range(layers)]
    return {
        "layer_types": [LINEAR if each else FULL for each in has_state[:layers]],
        "linear_conv_kernel_dim": width, "linear_key_head_dim": key_dim, "linear_value_head_dim": inner // heads,
        "linear_num_key_heads": key_heads, "linear_num_value_heads": heads,
    }  # fmt: skip


def read_gguf_with_experts(contents: GGUFContents) -> Mapping[str, Any]:
    """Return the fields of gated delta nets and of the shared expert."""
    size = contents.read.size_or("expert_shared_feed_forward_length", contents.fields["intermediate_size"])
    return {**_read_gguf(contents), "shared_expert_intermediate_size": size}


def _order(fields: Mapping[str, Any], name: str) -> FileOrder:
    """Return where values are: a file has the first value head of each key head, then the second of each."""
    groups, heads = fields["linear_num_key_heads"], fields["linear_num_value_heads"]
    module, width = name.partition(".linear_attn.")[2], fields["linear_value_head_dim"]
    if groups == heads or not module or heads % groups:
        return FileOrder()
    shared = heads // groups
    in_file = [member * groups + group for group in range(groups) for member in range(shared)]
    values = [head * width + row for head in in_file for row in range(width)]
    first = 2 * groups * fields["linear_key_head_dim"]
    if module in ("in_proj_qkv.weight", "conv1d.weight"):
        return FileOrder(rows=[*range(first), *(first + row for row in values)])
    if module == "in_proj_z.weight":
        return FileOrder(rows=values)
    if module in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        return FileOrder(rows=in_file)
    return FileOrder(columns=values) if module == "out_proj.weight" else FileOrder()


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
    gguf=GGUFArchitecture(
        name="qwen35", architecture="Qwen3_5ForCausalLM", model_type="qwen3_5_text", layer_names=_GGUF_LAYER,
        layer_tensors=DELTA_NET_GGUF_TENSORS, order=_order, norm_offset=1.0, has_partial_rotation=True,
        state_kind=LINEAR, read_fields=_read_gguf, fields={"hidden_act": "silu"},
    ),
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
    gguf=GGUFArchitecture(
        name="qwen35moe", architecture="Qwen3_5MoeForCausalLM", model_type="qwen3_5_moe_text",
        layer_names=_GGUF_LAYER, layer_tensors=DELTA_NET_GGUF_TENSORS, order=_order, norm_offset=1.0,
        has_partial_rotation=True, state_kind=LINEAR, expert_count_field="num_experts",
        read_fields=read_gguf_with_experts, fields={"hidden_act": "silu"},
    ),
)  # fmt: skip
