"""DecoderConfig: the architecture's values from a Hugging Face config.json, in either format. Imports no torch.

    transformers 4                                        transformers 5
    rope_theta, rope_scaling, rope_local_base_freq        rope_parameters, also one for each layer type
    torch_dtype                                           dtype
    sliding_window_pattern, max_window_layers             layer_types
    text_config around the text part of a multimodal model, in both

A field that config.json leaves out has the default of transformers' own config class, because published files rely on
that (Gemma 3's names five of its sizes only).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.model.config.config_reader import NO_TOKEN, ConfigReader
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.model_folder import read_json
from chairlift.model.config.quantized_checkpoint import check_quantization
from chairlift.model.config.rope_config import RopeConfig, lacking_feature, read_ropes
from chairlift.model.config.unsupported_architecture import architecture_names, unsupported_architecture

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
OTHER_ACTIVATIONS = ("relu", "relu2", "gelu_new", "gelu_fast", "quick_gelu", "gelu_python", "mish", "tanh", "xielu")
"""Activations that transformers has and Chairlift's own architectures do not."""

_LLAMA = {
    "num_key_value_heads": None, "head_dim": None, "hidden_act": "silu", "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "eos_token_id": 2, "bos_token_id": 1, "rope_theta": 10000.0,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
_MISTRAL = {**_LLAMA, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096}
_QWEN2 = {
    **_LLAMA, "num_key_value_heads": 32, "max_position_embeddings": 32768, "eos_token_id": None, "bos_token_id": None,
    "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip
_QWEN3 = {**_QWEN2, "head_dim": 128}
_GEMMA3 = {
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "eos_token_id": 1, "bos_token_id": 2, "attention_bias": False, "sliding_window": 4096,
    "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "final_logit_softcapping": None,
    "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
}  # fmt: skip

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
}
"""For each supported architecture: the defaults of transformers for fields that config.json omits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """The checked values of an architecture of Chairlift's own; `architecture` is a key of DEFAULTS.

    Attributes:
        norm_eps: added to the mean square under the root.
        activation: of the gate, one of ACTIVATIONS.
        rope: RoPE of layers with full attention.
        sliding_rope: RoPE of layers with a window.
        qkv_bias: whether query, key and value projections have a bias.
        output_bias: whether the projection after attention has a bias.
        mlp_bias: whether the three projections of the MLP have a bias.
        attention_scale: factor on query·key.
        final_softcap: logits become cap * tanh(logits / cap); None for no cap.
    """

    norm_eps: float
    activation: str
    rope: RopeConfig
    sliding_rope: RopeConfig
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    attention_scale: float
    final_softcap: float | None = None

    @property
    def max_context(self) -> int:
        """Longest sequence, in tokens, that the positions support; yarn extends the length of pretraining."""
        if self.rope.type != "yarn":
            return self.max_position_embeddings
        return max(self.max_position_embeddings, int(self.rope.original_length * self.rope.factor))

    def _limit_reason(self) -> str:
        """With RoPE "dynamic", keys that are already in the cache would have to be rotated again."""
        return ', the original length of its RoPE "dynamic"' if self.rope.type == "dynamic" else ""


def read_decoder_config(folder: Path) -> DecoderConfig:
    """Read config.json of a model folder. Raises ModelError, UnsupportedModel or UnsupportedArchitecture."""
    return parse_decoder_config(read_json(folder / "config.json"))


def parse_decoder_config(content: Mapping[str, Any]) -> DecoderConfig:
    """Turn the object in config.json into a DecoderConfig.

    Raises ModelError, UnsupportedModel or UnsupportedArchitecture.
    """
    architecture = _architecture(content)
    check_quantization(content)
    text = content.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise ModelError(f"config.json: text_config must be an object, got {type(text).__name__}")
    check_quantization(text)
    # The wrapper's fields apply where text_config omits them (eos_token_id, torch_dtype); the wrapper decides the tie.
    merged = {**content, **{name: value for name, value in text.items() if value is not None or name not in content}}
    if "tie_word_embeddings" in content:
        merged["tie_word_embeddings"] = content["tie_word_embeddings"]
    for name in ("eos_token_id", "bos_token_id"):
        if content.get(name) not in (None, NO_TOKEN, []):  # these name no token, and text_config may
            merged[name] = content[name]
    fields = ConfigReader(merged, DEFAULTS[architecture])
    config = _llama_like(architecture, fields)
    if architecture.startswith("Gemma3"):
        config = _gemma3(config, fields)
    return config


def _architecture(content: Mapping[str, Any]) -> str:
    for name in architecture_names(content):
        if name in DEFAULTS:
            return name
    raise unsupported_architecture(content, DEFAULTS)


def _llama_like(architecture: str, fields: ConfigReader) -> DecoderConfig:
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size_or("num_key_value_heads", heads)
    hidden = fields.size("hidden_size")
    head_dim = fields.size_or("head_dim", hidden // heads)
    layers = fields.size("num_hidden_layers")
    if heads % kv_heads:
        raise ModelError(f"config.json: {heads} query heads cannot share {kv_heads} key/value heads evenly")
    if head_dim < 2 or head_dim % 2:
        raise ModelError(f"config.json: head_dim must be even for RoPE, got {head_dim}")
    attention_bias = fields.flag("attention_bias")
    qwen2, mistral = architecture == "Qwen2ForCausalLM", architecture == "MistralForCausalLM"
    windows = _layer_windows(architecture, fields, layers)
    max_positions = fields.size("max_position_embeddings")
    full, sliding = read_ropes(fields, max_positions, by_layer_type=architecture.startswith("Gemma3"))
    for rope in (full, sliding):
        if rope.divisors and len(rope.divisors) != head_dim // 2:
            raise ModelError(f"config.json: RoPE has {len(rope.divisors)} factors for {head_dim // 2} frequencies")
    return DecoderConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=fields.number("rms_norm_eps"),
        activation=_activation(fields),
        max_position_embeddings=max_positions,
        layer_windows=windows,
        rope=full,
        sliding_rope=sliding,
        qkv_bias=qwen2 or (attention_bias and not mistral),
        output_bias=attention_bias and not (qwen2 or mistral),
        mlp_bias=architecture == "LlamaForCausalLM" and fields.flag("mlp_bias"),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_scale=head_dim**-0.5,
        eos_token_ids=fields.token_ids("eos_token_id"),
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        dtype=fields.dtype(),
    )


def _activation(fields: ConfigReader) -> str:
    name = "hidden_activation" if "hidden_activation" in fields else "hidden_act"
    if fields.get(name) in OTHER_ACTIVATIONS:
        raise lacking_feature(f"{name} {fields.get(name)!r} is not supported; supported are {', '.join(ACTIVATIONS)}")
    return fields.choice(name, ACTIVATIONS)


def _gemma3(config: DecoderConfig, fields: ConfigReader) -> DecoderConfig:
    """Add Gemma 3's own fields. Its attn_logit_softcapping is ignored, as transformers' Gemma 3 never applies it."""
    if fields.flag_or("use_bidirectional_attention", False):
        raise ModelError("config.json: use_bidirectional_attention is not supported; only causal attention is")
    return replace(
        config,
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        final_softcap=fields.number_or_none("final_logit_softcapping"),
    )


def _layer_windows(architecture: str, fields: ConfigReader, layers: int) -> tuple[int | None, ...]:
    if architecture == "LlamaForCausalLM":
        return (None,) * layers
    window = fields.size_or_none("sliding_window")
    if architecture.startswith("Qwen") and not fields.flag("use_sliding_window"):
        window = None
    kinds = fields.names("layer_types")
    if architecture == "MistralForCausalLM":
        # transformers' Mistral has a window in all layers or in none, whatever layer_types contains.
        kind = "full_attention" if window is None else "sliding_attention"
        if kinds is not None and set(kinds) != {kind}:
            raise ModelError(f"config.json: layer_types {sorted(set(kinds))} contradict sliding_window {window}")
        return (window,) * layers
    if kinds is None and architecture.startswith("Gemma3"):
        pattern = fields.size(
            "_sliding_window_pattern" if "_sliding_window_pattern" in fields else "sliding_window_pattern"
        )
        kinds = tuple("sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(layers))
    elif kinds is None:
        first = fields.count("max_window_layers") if window is not None else layers
        kinds = tuple("sliding_attention" if layer >= first else "full_attention" for layer in range(layers))
    return _windows_of_kinds(kinds, window, layers)


def _windows_of_kinds(kinds: tuple[str, ...], window: int | None, layers: int) -> tuple[int | None, ...]:
    if len(kinds) != layers:
        raise ModelError(f"config.json: layer_types has {len(kinds)} entries, num_hidden_layers is {layers}")
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ModelError(f"config.json: layer_types {sorted(unknown)} are not supported")
    if window is None and "sliding_attention" in kinds:
        raise ModelError("config.json: layer_types has sliding_attention, but sliding_window is missing")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
