"""config.json of published models, and sparse safetensors files of their full size."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

Shapes = Mapping[str, tuple[int, ...]]

_LLAMA32: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama", "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
_QWEN25: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "initializer_range": 0.02, "model_type": "qwen2", "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True,
    "use_mrope": False, "use_sliding_window": False,
}  # fmt: skip
_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "initializer_range": 0.02,
    "max_position_embeddings": 40960, "model_type": "qwen3", "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
_MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
}  # fmt: skip

PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": {
        **_LLAMA32, "head_dim": 64, "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 16,
    },
    "Llama-3.2-3B": {
        **_LLAMA32, "head_dim": 128, "hidden_size": 3072, "num_attention_heads": 24, "num_hidden_layers": 28,
    },
    "Qwen2.5-0.5B": {
        **_QWEN25, "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
        "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
        "sliding_window": 32768, "tie_word_embeddings": True, "vocab_size": 151936,
    },
    "Qwen2.5-7B": {
        **_QWEN25, "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072,
        "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "sliding_window": 131072, "tie_word_embeddings": False, "vocab_size": 152064,
    },
    "Qwen3-0.6B": {
        **_QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "max_window_layers": 28, "num_attention_heads": 16,
        "num_hidden_layers": 28, "tie_word_embeddings": True,
    },
    "Qwen3-8B": {
        **_QWEN3, "hidden_size": 4096, "intermediate_size": 12288, "max_window_layers": 36, "num_attention_heads": 32,
        "num_hidden_layers": 36, "tie_word_embeddings": False,
    },
    "Mistral-7B-v0.1": {**_MISTRAL, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 32000},
    "Mistral-7B-v0.3": {**_MISTRAL, "rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32768},
    "gemma-3-1b-it": {
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
        "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768,
        "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "use_cache": True, "vocab_size": 262144,
    },
    "gemma-3-4b-it": {
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
        "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
        "vision_config": {
            "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
        },
    },
}  # fmt: skip

SHARDS = {"Llama-3.2-3B": 2, "Qwen2.5-7B": 4, "Qwen3-8B": 5, "Mistral-7B-v0.1": 2, "Mistral-7B-v0.3": 3,
          "gemma-3-4b-it": 2}  # fmt: skip
"""Number of weight files of the models that have more than one."""

HEAD_STORED = ("Qwen3-0.6B",)
"""Models whose files contain lm_head.weight although it is tied."""


def write_sparse_file(path: Path, shapes: Shapes, dtype: str = "BF16", size: int = 2) -> None:
    """Write a sparse safetensors file: zeros when read, no disk space for the tensors."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def write_sparse_checkpoint(folder: Path, config: Mapping[str, Any], shapes: Shapes, shards: int) -> Path:
    """Write config.json and sparse weights in one file, or in several with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write_sparse_file(folder / "model.safetensors", shapes)
        return folder
    names = list(shapes)
    share = -(-len(names) // shards)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard * share : (shard + 1) * share]
        write_sparse_file(folder / file, {name: shapes[name] for name in part})
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def rewrite(folder: Path, change: Any) -> None:
    """Change the dictionary of tensors of a folder with one file."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
