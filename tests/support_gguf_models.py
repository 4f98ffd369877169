"""write_gguf, MIXES: a tiny model as a GGUF file of any types, and that of transformers with the numbers of the file.

The numbers are those of the package gguf's dequantizer. Types that it cannot quantize to have random blocks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from chairlift.model.config.gguf_types import TYPES_BY_NAME
from support_gguf import random_blocks
from support_gguf_config import ARCHITECTURES, add_metadata
from support_gguf_tensors import file_parts
from support_models import VARIANTS, tiny_hf_model

SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "num_hidden_layers": 2,
}  # fmt: skip
"""Sizes that blocks of 256 divide."""

DELTA_NET: dict[str, Any] = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "num_hidden_layers": 3}
EXPERTS = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 96}

CHANGES: dict[str, dict[str, Any]] = {
    "gemma3": {
        "num_hidden_layers": 6, "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        "query_pre_attn_scalar": 64,
    },
    "gemma2": {"query_pre_attn_scalar": 64, "num_hidden_layers": 4},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0]},
    "phi3-partial": {
        "num_hidden_layers": 2, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 256,
            "short_factor": [1.0 + index / 8 for index in range(24)],
            "long_factor": [2.0 + index / 4 for index in range(24)],
        },
        "original_max_position_embeddings": 256,
    },
    "glm4": {"partial_rotary_factor": 0.5, "attention_bias": True},
    "olmo3": {"num_hidden_layers": 4},
    "ministral3": {},
    "qwen3_moe": {"mlp_only_layers": [], **EXPERTS},
    "mixtral": {"sliding_window": None},
    "gpt_oss": {"num_hidden_layers": 4, "sliding_window": 20},
    "qwen3_5": {**DELTA_NET, "num_hidden_layers": 4},
    "qwen3_5_moe": {**DELTA_NET, **EXPERTS},
    "qwen3_next": {**DELTA_NET, **EXPERTS, "mlp_only_layers": []},
    "lfm2": {"num_hidden_layers": 4},
    "granite_hybrid": {"num_hidden_layers": 3, "mamba_n_heads": 8, "mamba_d_head": 64},
    "granite_hybrid_moe": {"num_hidden_layers": 3, "mamba_n_heads": 8, "mamba_d_head": 64,
                           "position_embedding_type": "nope", "shared_intermediate_size": 96},
}  # fmt: skip
"""Fields of kinds of models, so that a file can describe them and blocks divide their sizes."""

FLOAT32 = ("ffn_gate_inp", "ssm_conv1d", "ssm_a", "ssm_d", "ssm_norm", "ssm_dt", "shortconv.conv", "_norm", "sinks")
"""Parts of the names of tensors that the converter writes in float32."""

BLOCK_SCALES = {"Q4_K": (6e-4, 4.5e-3), "Q5_K": (3e-4, 4.5e-3), "Q6_K": (1e-4,), "IQ4_XS": (1e-4,)}
"""Types without a quantizer -> float16 scales of their random blocks, for numbers of about 0.15."""

SCALE_PLACES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,)}


def q4_k_m(name: str) -> str:
    """Return the types of a Q4_K_M file: values and down projections differ by layer, and the table is Q6_K."""
    if name == "token_embd.weight" or (name.startswith("blk.0") and ("attn_v" in name or "ffn_down" in name)):
        return "Q6_K"
    return {"attn_k": "Q5_K", "ffn_up": "Q5_0", "attn_output": "IQ4_XS"}.get(name.split(".")[-2], "Q4_K")


MIXES: dict[str, Callable[[str], str]] = {
    **{name: lambda _, name=name: name for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_1", "F16", "BF16", "F32")},  # type: ignore[misc]
    "Q4_K_M": q4_k_m, "Q6_K tied": lambda name: "Q6_K" if name == "token_embd.weight" else "Q8_0",
}  # fmt: skip


def write_gguf(
    path: Path, kind: str, type_of: Callable[[str], str], *, seed: int = 0, num_files: int = 1, tokens: Any = None,
    vector_type: str = "F32", more_blocks: int = 0, keeps_joined: bool = False, **changes: Any,
) -> Any:  # fmt: skip
    """Write a model of a kind (a key of VARIANTS) and return it in float64.

    Args:
        path: the file; with several files the name before "-00001-of-".
        kind: the architecture.
        type_of: name of a matrix in the file -> name of its type.
        seed: of the weights.
        num_files: number of split files.
        tokens: called with the writer, adds a tokenizer.
        vector_type: type of norms and biases.
        more_blocks: number of blocks behind the last layer, which predict later tokens.
        keeps_joined: whether the joined projections of Qwen3-Next stay together, as in older files.
        changes: fields of the config.
    """
    model = tiny_hf_model(kind, seed, torch.float64, **{**SIZES, **CHANGES.get(kind, {}), **changes})
    config = model.config
    config.architectures = [VARIANTS[kind][1]]
    name = ARCHITECTURES[config.architectures[0]]
    parts = file_parts(model, name, keeps_joined=keeps_joined)
    size = -(-(len(parts) + 1) // num_files)
    writer = gguf.GGUFWriter(path, name, split_max_tensors=size if num_files > 1 else 0)
    add_metadata(writer, config, more_blocks)
    for block in range(config.num_hidden_layers, config.num_hidden_layers + more_blocks):
        writer.add_tensor(f"blk.{block}.nextn.enorm.weight", np.ones(config.hidden_size, np.float32))
    if tokens is not None:
        tokens(writer)
    rng = np.random.default_rng(seed)
    for part in parts:
        numbers = part.stored()
        is_small = numbers.ndim == 1 or any(each in part.name for each in FLOAT32)
        wanted = (vector_type if numbers.ndim == 1 else "F32") if is_small else type_of(part.name)
        if numbers.ndim > 1 and numbers.shape[-1] % block_size(wanted):
            wanted = "Q8_0" if numbers.shape[-1] % 32 == 0 else "F32"
        data, numbers = _encode(numbers, wanted, rng)
        kind_of = gguf.GGMLQuantizationType[wanted]
        writer.add_tensor(part.name, data, raw_dtype=None if wanted in ("F32", "F16") else kind_of)
        part.put_back(numbers)
    rope = config.rope_parameters
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _divisors(model))
    for factors in ("short_factor", "long_factor") if rope.get("rope_type") == "longrope" else ():
        tensor = f"rope_factors_{factors.partition('_')[0]}.weight"
        writer.add_tensor(tensor, np.array(rope[factors], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def block_size(kind: str) -> int:
    """Return the elements of a block of a type."""
    return TYPES_BY_NAME[kind].block_size


def _encode(numbers: NDArray[np.float32], wanted: str, rng: Any) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return the bytes of a tensor, or its numbers as they are stored, and the numbers that they mean."""
    kind = gguf.GGMLQuantizationType[wanted]
    if wanted == "F32":
        return numbers.astype(np.float32), numbers.astype(np.float32)
    if wanted == "F16":
        half = numbers.astype(np.float16)
        return half, half.astype(np.float32)
    if wanted not in BLOCK_SCALES:
        data = quantize(numbers, kind)
        return data, dequantize(data, kind)
    own, rows = TYPES_BY_NAME[wanted], numbers.size // numbers.shape[-1]
    blocks = random_blocks(own, rows, numbers.shape[-1] // own.block_size, int(rng.integers(2**31)))
    blocks = blocks.reshape(rows, -1, own.block_bytes)
    for place, scale in zip(SCALE_PLACES[wanted], BLOCK_SCALES[wanted], strict=True):
        scales = (rng.uniform(0.7, 1.3, blocks.shape[:2]) * scale).astype(np.float16)
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    data = blocks.reshape(*numbers.shape[:-1], -1)
    return data, dequantize(data, kind)


def _divisors(model: Any) -> NDArray[np.float32]:
    """Return the divisors of a rotation as of Llama 3, and give the model the frequencies that they round to."""
    config, rotary = model.config, model.model.rotary_emb
    base = config.rope_parameters["rope_theta"] ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    divisors = (1.0 / base) / rotary.inv_freq.float()
    assert divisors[0] == 1 and divisors[-1] == config.rope_parameters["factor"]
    rounded = 1.0 / (divisors * base)
    torch.testing.assert_close(rounded, rotary.inv_freq.float(), rtol=3e-7, atol=0)
    rotary.inv_freq = rounded.to(rotary.inv_freq.dtype)
    return np.asarray(divisors.numpy(), np.float32)
