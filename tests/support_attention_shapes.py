"""attention_config, SHAPES, dense_logits: a small decoder with several kinds of attention, and its plain computation.

Its layers slide or see everything, have no v_proj, normalise their values, or read the keys and values of an earlier
layer. The reference computes each head of each sequence alone, in float64, without a cache.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.backends.model_backend import ModelBackend
from chairlift.model.config.decoder_config import HEAD, DecoderConfig
from chairlift.model.config.layer_groups import AttentionShape
from chairlift.model.config.rope_config import RopeConfig
from chairlift.model.layers.causal_lm_protocol import CausalLM
from chairlift.model.layers.rope import RopeTable
from chairlift.model.loading.model_building import random_model

CPU = torch.device("cpu")
VOCAB_SIZE, POSITIONS, WINDOW = 203, 512, 20
WINDOWS = (WINDOW, None, WINDOW, None, WINDOW, None, WINDOW)
SOURCES = (None, None, None, None, 2, 3, 2)


def shapes_of(window: AttentionShape, full: AttentionShape) -> dict[str, Any]:
    """Return the field of a decoder whose layers with a window and without have these heads."""
    return {"layer_shapes": tuple(full if each is None else window for each in WINDOWS)}


SHAPES: dict[str, dict[str, Any]] = {
    "one shape": {},
    "equal widths": shapes_of(AttentionShape(2, 32), AttentionShape(1, 64)),
    "wider without a window": shapes_of(AttentionShape(1, 32), AttentionShape(2, 64)),
    "pages that are not full": shapes_of(AttentionShape(2, 48), AttentionShape(1, 64)),
}
"""Changes of attention_config: the heads of its layers."""


def attention_config(**changes: Any) -> DecoderConfig:
    """Return a decoder of seven layers, of which the last three read the keys and values of earlier ones."""
    fields: dict[str, Any] = {
        "architecture": "LlamaForCausalLM", "vocab_size": VOCAB_SIZE, "hidden_size": 72, "intermediate_size": 96,
        "num_layers": len(WINDOWS), "num_heads": 4, "num_kv_heads": 2, "head_dim": 32,
        "max_position_embeddings": POSITIONS, "layer_windows": WINDOWS, "kv_sources": SOURCES, "value_is_key": (1, 3),
        "has_value_norm": True, "head_norm": HEAD, "norm_in_float32": True, "norm_eps": 1e-6,
        "activation": "gelu_pytorch_tanh", "rope": RopeConfig(theta=1e6), "sliding_rope": RopeConfig(),
        "attention_scale": 0.3, "eos_token_ids": (2, 7), "dtype": "float32",
    }  # fmt: skip
    return DecoderConfig(**fields | changes)


def attention_model(
    config: DecoderConfig,
    dtype: str,
    backend: ModelBackend | None = None,
) -> tuple[CausalLM, dict[str, Tensor]]:
    """Return the model with random weights on a backend, in torch without one, and its weights by name."""
    weights: dict[str, Tensor] = {}

    def keep(name: str, tensor: Tensor) -> Tensor:
        weights[name] = tensor
        return tensor

    made, _ = random_model(
        config, seed=3, dtype=dtype, device=CPU, max_model_len=POSITIONS, scale=0.1, change=keep,
        choose_backend=None if backend is None else lambda _: backend,
    )  # fmt: skip
    return made, weights


def dense_logits(config: DecoderConfig, weights: dict[str, Tensor], ids: list[int]) -> Tensor:
    """Return the logits float64 [T, V] of a sequence."""

    def norm(x: Tensor, name: str | None) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + config.norm_eps)
        return normed.double() if name is None else normed * weights[f"{name}.weight"].double()

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].double().T

    x = weights["model.embed_tokens.weight"].double()[torch.tensor(ids)]
    cached: dict[int, tuple[Tensor, Tensor]] = {}
    for layer in range(config.num_layers):
        name, shape = f"model.layers.{layer}.self_attn", config.attention_shape_of(layer)
        normed = norm(x, f"model.layers.{layer}.input_layernorm")
        query = linear(normed, f"{name}.q_proj").unflatten(1, (config.num_heads, shape.head_dim))
        query = rotated(norm(query, f"{name}.q_norm"), config, layer)
        source = config.kv_sources[layer] if config.kv_sources else None
        if source is None:
            key = linear(normed, f"{name}.k_proj").unflatten(1, (shape.num_kv_heads, shape.head_dim))
            value = key if layer in config.value_is_key else linear(normed, f"{name}.v_proj").view_as(key)
            value = norm(value, None) if config.has_value_norm else value
            cached[layer] = rotated(norm(key, f"{name}.k_norm"), config, layer), value
        x = x + linear(attended(query, *cached[layer if source is None else source], config, layer), f"{name}.o_proj")
        normed = norm(x, f"model.layers.{layer}.post_attention_layernorm")
        mlp = f"model.layers.{layer}.mlp"
        gate = functional.gelu(linear(normed, f"{mlp}.gate_proj"), approximate="tanh")
        x = x + linear(gate * linear(normed, f"{mlp}.up_proj"), f"{mlp}.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


def rotated(heads: Tensor, config: DecoderConfig, layer: int) -> Tensor:
    """Return heads [T, heads, D] with the rotation of a layer at positions 0 to T - 1."""
    rope = config.rope if config.layer_windows[layer] is None else config.sliding_rope
    table = RopeTable.of(rope, heads.shape[-1], POSITIONS, torch.float64, CPU)
    cos, sin = table.cos[: len(heads), None], table.sin[: len(heads), None]
    left, right = heads.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def attended(query: Tensor, key: Tensor, value: Tensor, config: DecoderConfig, layer: int) -> Tensor:
    """Return the attention [T, heads * D] of query [T, heads, D] to key and value [T, kv heads, D]."""
    window, positions = config.layer_windows[layer], torch.arange(len(query))
    distance = positions[:, None] - positions
    is_visible = (distance >= 0) & (distance < (window or len(query)))
    outputs = []
    for head in range(query.shape[1]):
        of = head * key.shape[1] // query.shape[1]
        scores = (query[:, head] @ key[:, of].T * config.attention_scale).masked_fill(~is_visible, -torch.inf)
        outputs.append(scores.softmax(-1) @ value[:, of])
    return torch.cat(outputs, -1)
