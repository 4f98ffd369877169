"""decoder_config, windows_of_kinds: what the architectures read from config.json in the same way. Imports no torch."""

from collections.abc import Callable, Sequence
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.model.config.activations import ACTIVATIONS, OTHER_ACTIVATIONS
from chairlift.model.config.architectures.architecture import TensorSource
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.experts_config import ExpertFields
from chairlift.model.config.rope_config import RopeConfig, lacking_feature, read_ropes

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
"""Entries of layer_types; a LINEAR layer keeps a state."""

LLAMA_DEFAULTS = {
    "num_key_value_heads": None, "head_dim": None, "hidden_act": "silu", "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "eos_token_id": 2, "bos_token_id": 1, "rope_theta": 10000.0,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
"""Defaults of Llama, which those of most others differ from in a few fields."""

LLAMA_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""GGUFArchitecture.layer_names of Llama."""

LLAMA_GGUF_ATTENTION = {
    each: stored for each, stored in LLAMA_GGUF_LAYER.items() if each.startswith(("input", "self_attn"))
}
"""The part of attention."""

GGUF_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
"""The same of norms of queries and keys."""


def decoder_config(
    architecture: str, fields: ConfigReader, windows: Sequence[int | None], **own: Any
) -> DecoderConfig:  # fmt: skip
    """Read the fields that all architectures have.

    Args:
        architecture: name in config.json.
        fields: fields of config.json.
        windows: DecoderConfig.layer_windows.
        own: fields of DecoderConfig that differ from Llama's.

    Raises ModelError and UnsupportedArchitecture.
    """
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size_or("num_key_value_heads", heads)
    hidden = fields.size("hidden_size")
    head_dim = read_head_dim(fields)
    layers = fields.size("num_hidden_layers")
    check_heads(heads, kv_heads, head_dim)
    max_positions = fields.size("max_position_embeddings")
    if "rope" not in own:
        own["rope"], own["sliding_rope"] = read_ropes(fields, max_positions, by_layer_type=False)
    for rope in (own["rope"], own["sliding_rope"]):
        _check_divisors(rope, head_dim)
    values = {
        "intermediate_size": own.get("intermediate_size") or fields.size("intermediate_size"),
        "norm_eps": own.get("norm_eps") or fields.number("rms_norm_eps"),
        "activation": read_activation(fields),
        "attention_scale": head_dim**-0.5,
        "tie_word_embeddings": fields.flag("tie_word_embeddings"),
        "eos_token_ids": fields.token_ids("eos_token_id"),
        **own,
    }
    return DecoderConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        layer_windows=tuple(windows),
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        dtype=fields.dtype(),
        **values,
    )


def check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    """Raise ModelError unless so many query heads can share so many key heads of a width, and rotate."""
    if heads % kv_heads:
        raise ModelError(f"config.json: {heads} query heads cannot share {kv_heads} key/value heads evenly")
    if head_dim < 2 or head_dim % 2:
        raise ModelError(f"config.json: head_dim must be even for RoPE, got {head_dim}")


def same_window(fields: ConfigReader) -> tuple[int | None, ...]:
    """Return layer_windows of a decoder with `sliding_window` in all layers, or in none."""
    return (fields.size_or_none("sliding_window"),) * fields.size("num_hidden_layers")


def layer_windows(fields: ConfigReader, default: Callable[[int], bool]) -> tuple[int | None, ...]:
    """Return layer_windows by layer_types; `default` says which layers slide where config.json has no layer_types."""
    layers, kinds = fields.size("num_hidden_layers"), fields.names("layer_types")
    if kinds is None:
        kinds = tuple(SLIDING if default(layer) else FULL for layer in range(layers))
    return windows_of_kinds(kinds, fields.size_or_none("sliding_window"), layers)


def read_head_dim(fields: ConfigReader) -> int:
    """Return head_dim, which is hidden_size by num_attention_heads where config.json has none."""
    return fields.size_or("head_dim", fields.size("hidden_size") // fields.size("num_attention_heads"))


JOINED = {"self_attn.q_proj": 0, "self_attn.k_proj": 1, "self_attn.v_proj": 2, "mlp.gate_proj": 0, "mlp.up_proj": 1}
"""Module -> its place in qkv_proj or gate_up_proj."""


def joined_source(config: DecoderConfig, name: str) -> TensorSource | None:
    """Return where a checkpoint with qkv_proj and gate_up_proj has a parameter (Architecture.source)."""
    layer, separator, rest = name.partition("self_attn." if "self_attn." in name else "mlp.")
    module, _, kind = rest.rpartition(".")
    if (place := JOINED.get(f"{separator}{module}")) is None:
        return None
    if separator == "mlp.":
        first = place * config.intermediate_size
        return TensorSource(f"{layer}mlp.gate_up_proj.{kind}", range(first, first + config.intermediate_size))
    inner, kv_inner = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    first, size = ((0, inner), (inner, kv_inner), (inner + kv_inner, kv_inner))[place]
    return TensorSource(f"{layer}self_attn.qkv_proj.{kind}", range(first, first + size))


def dense_layers(experts: ExpertFields, fields: ConfigReader) -> tuple[int, ...]:
    """Return DecoderConfig.dense_layers."""
    sparse = experts.sparse_layers(fields, fields.size("num_hidden_layers"))
    return tuple(layer for layer, has_experts in enumerate(sparse) if not has_experts)


def full_attention(fields: ConfigReader) -> tuple[None, ...]:
    """Return layer_windows of a decoder without windows."""
    return (None,) * fields.size("num_hidden_layers")


def windows_of_kinds(kinds: Sequence[str], window: int | None, layers: int) -> tuple[int | None, ...]:
    """Return layer_windows for the entries of layer_types. Raises ModelError for entries that do not fit."""
    _check_kinds(kinds, (SLIDING, FULL), layers)
    if window is None and SLIDING in kinds:
        raise ModelError("config.json: layer_types has sliding_attention, but sliding_window is missing")
    return tuple(window if kind == SLIDING else None for kind in kinds)


def check_state_kinds(kinds: Sequence[str], state_kind: str, layers: int) -> None:
    """Raise ModelError unless each layer has a state of this kind or full attention, and one has attention."""
    _check_kinds(kinds, (state_kind, FULL), layers)
    if FULL not in kinds:
        raise ModelError("config.json: layer_types has no layer with attention, which is not supported")


def _check_kinds(kinds: Sequence[str], known: Sequence[str], layers: int) -> None:
    if len(kinds) != layers:
        raise ModelError(f"config.json: layer_types has {len(kinds)} entries, num_hidden_layers is {layers}")
    if unknown := set(kinds) - set(known):
        raise ModelError(f"config.json: layer_types {sorted(unknown)} are not supported")


def read_activation(fields: ConfigReader) -> str:
    """Return the activation of the gate, one of ACTIVATIONS."""
    name = "hidden_activation" if "hidden_activation" in fields else "hidden_act"
    if fields.get(name) in OTHER_ACTIVATIONS:
        raise lacking_feature(f"{name} {fields.get(name)!r} is not supported; supported are {', '.join(ACTIVATIONS)}")
    return fields.choice(name, ACTIVATIONS)


def _check_divisors(rope: RopeConfig, head_dim: int) -> None:
    frequencies = (rope.rotary_dim or head_dim) // 2
    if rope.divisors and len(rope.divisors) != frequencies:
        raise ModelError(f"config.json: RoPE has {len(rope.divisors)} factors for {frequencies} frequencies")
