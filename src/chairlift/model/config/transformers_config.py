"""TransformersConfig: sizes of a decoder that transformers' modules compute, from config.json. Imports no torch.

The file's own fields come first, under the names of any architecture. Only where one is missing, the defaults of
transformers' config class are read, for which transformers is imported. What the layers really do (windows, heads) is
measured when the model is loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.quantized_checkpoint import check_quantization
from chairlift.model.config.unsupported_architecture import OTHER_INPUTS, architecture_names, unsupported_architecture

EXTRA = "chairlift[transformers]"
HEAD_NAMES = ("ForCausalLM", "LMHeadModel")
"""Ends of the names of decoders with a language model head."""

ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "attention", "global", "local")
"""Kinds of layers that a paged KV cache holds."""

SELECTIVE_KINDS = (
    "indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse",
    "reference_sliding_attention",
)  # fmt: skip
"""Kinds of layers whose attention selects tokens by more than their distance."""

FEED_FORWARD_KINDS = ("mlp", "moe", "dense", "sparse")
"""Kinds of layers without attention, beside which there is always one with a state."""

STATE_FIELDS = ("mamba_", "ssm_", "lru_", "state_size", "attn_layer_period")
"""Beginnings of fields that only models with state-space or recurrent layers have."""

DEFAULT_POSITIONS = 2048
"""Longest sequence of a model whose config.json names none, as in vLLM; its positions have no limit."""

_ATTENTION_REMEDY = "use a model whose layers all have causal attention"

ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "max_position_embeddings": ("n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
}
"""Name of a size -> its names in the config.json of some architectures."""

DECODER_FIELDS: Mapping[str, str] = {
    "num_hidden_layers": "decoder_layers", "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim",
}  # fmt: skip
"""Name of a size -> its name in the config.json of an encoder-decoder, of which only the decoder is the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig(ModelConfig):
    """The sizes of a decoder that transformers' modules compute.

    Attributes:
        original_length: with RoPE "longrope": tokens up to which the short factors apply; None without.
    """

    original_length: int | None = None

    def context_length(self, requested: int | None = None) -> int:
        """See ModelConfig. With RoPE "longrope" it is the length of the short factors unless more is requested.

        transformers changes the factors within a sequence that passes this length. All sequences of this engine have
        the same factors, the long ones where max_model_len is greater.
        """
        if requested is None and self.original_length is not None:
            return self.original_length
        return super(TransformersConfig, self).context_length(requested)


def parse_transformers_config(content: Mapping[str, Any]) -> TransformersConfig:
    """Turn the object in config.json into a TransformersConfig.

    Raises ModelError, UnsupportedModel or UnsupportedArchitecture: for a model that is not a decoder of text, and for
    any where transformers is not installed.
    """
    check_quantization(content)
    architecture = _supported_name(content)
    text = content.get("text_config")
    merged = {**content, **text} if isinstance(text, Mapping) else dict(content)
    check_quantization(merged)
    merged |= {name: merged[own] for name, own in DECODER_FIELDS.items() if merged.get(own) is not None}
    fields = ConfigReader(merged, _defaults(merged))
    if "num_attention_heads" not in fields:
        raise _without_attention(architecture, "no attention heads")
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    layers = fields.size("num_hidden_layers")
    has_limit = fields.get("max_position_embeddings") not in (None, -1)
    positions = fields.size("max_position_embeddings") if has_limit else DEFAULT_POSITIONS
    return TransformersConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=_widest(fields, 4 * hidden),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.size_or("num_key_value_heads", heads),
        head_dim=fields.size_or("head_dim", max(1, hidden // heads)),
        max_position_embeddings=positions,
        layer_windows=_windows(fields, layers),
        eos_token_ids=fields.token_ids("eos_token_id"),
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        dtype=fields.dtype(),
        original_length=_original_length(fields, positions),
    )


def _supported_name(content: Mapping[str, Any]) -> str:
    """Return the architecture's name; raises UnsupportedArchitecture with the reason against it."""
    names = architecture_names(content)
    heads = [name for name in names if name.endswith(HEAD_NAMES)]
    if not heads or content.get("is_encoder_decoder") is True or any(field in content for field in OTHER_INPUTS):
        raise unsupported_architecture(content, [f"architectures whose names end in {' or '.join(HEAD_NAMES)}"])
    _check_kinds(heads[0], content)
    if find_spec("transformers") is None:
        remedy = f"install transformers, which computes it: pip install '{EXTRA}'"
        raise UnsupportedArchitecture(
            f"config.json names architecture {heads[0]}, which Chairlift does not have itself; {remedy}", remedy=remedy
        )
    if content.get("auto_map") and not _is_known_type(content.get("model_type")):
        raise needs_own_code(heads[0])
    return heads[0]


def _is_known_type(model_type: object) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def needs_own_code(architecture: str) -> UnsupportedArchitecture:
    """Return the error for a model that code in its folder computes."""
    remedy = "use a model whose architecture transformers has"
    return UnsupportedArchitecture(
        f"{architecture} is code in the model folder (auto_map in config.json), and Chairlift runs no code of a model; "
        f"{remedy}", remedy=remedy,
    )  # fmt: skip


def _check_kinds(architecture: str, content: Mapping[str, Any]) -> None:
    """Raise UnsupportedArchitecture for layers without keys and values, as far as config.json tells."""
    kinds = set(_layer_kinds(content))
    others = sorted(kinds - {*ATTENTION_KINDS, *SELECTIVE_KINDS, *FEED_FORWARD_KINDS})
    if others:
        raise _without_attention(architecture, f"layers of the kind {', '.join(others)}")
    if selective := sorted(kinds & set(SELECTIVE_KINDS)):
        raise UnsupportedArchitecture(
            f"{architecture} has layers of the kind {', '.join(selective)}, which select tokens by their content; only "
            "attention to all earlier tokens or to a sliding window is supported", remedy=_ATTENTION_REMEDY,
        )  # fmt: skip
    if not kinds and (state := next((name for name in content if name.startswith(STATE_FIELDS)), None)):
        raise _without_attention(architecture, f"state-space layers ({state} in config.json)")


def _without_attention(architecture: str, what: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        f"{architecture} has {what}: a state of its own instead of keys and values; only models whose layers all have "
        "attention are supported", remedy=_ATTENTION_REMEDY,
    )  # fmt: skip


def _layer_kinds(content: Mapping[str, Any]) -> Sequence[str]:
    for name in ("layer_types", "layers_block_type", "block_types"):
        if isinstance(kinds := content.get(name), list):
            return [kind for kind in kinds if isinstance(kind, str)]
    return ()


def _defaults(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for fields that the file does not have under their usual name, from its aliases or transformers."""
    found: dict[str, Any] = {}
    for name, aliases in ALIASES.items():
        value = next((content[alias] for alias in aliases if content.get(alias) is not None), None)
        if value is not None:
            found[name] = value
    needed = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    if any(content.get(name) is None and name not in found for name in needed):
        found = _class_defaults(content, (*needed, *ALIASES, "eos_token_id", "bos_token_id", "sliding_window")) | found
    return found


def _class_defaults(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        made = CONFIG_MAPPING[str(content.get("model_type"))].from_dict(dict(content))
    except Exception:  # a field of any kind; the model's own load names it
        return {}
    return {name: value for name in names if (value := getattr(made, name, None)) is not None}


def _widest(fields: ConfigReader, fallback: int) -> int:
    """Return the width of the MLPs, that of the widest where config.json has one for each layer (Gemma 3n)."""
    sizes = fields.get("intermediate_size")
    if isinstance(sizes, list) and sizes:
        return max(ConfigReader({"intermediate_size": size}, {}).size("intermediate_size") for size in sizes)
    return fields.size_or("intermediate_size", fallback)


def _windows(fields: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Return the windows that config.json seems to mean; the loaded layers decide."""
    window = fields.get("sliding_window")
    if not isinstance(window, int) or window < 1 or not fields.flag_or("use_sliding_window", True):
        return (None,) * layers
    kinds = fields.names("layer_types")
    if kinds is None or len(kinds) != layers:
        return (window,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _original_length(fields: ConfigReader, positions: int) -> int | None:
    """Return the tokens up to which the short factors of RoPE "longrope" apply, in one of several rotations, too."""
    rope = fields.object("rope_parameters") or fields.object("rope_scaling")
    ropes = [each for each in (rope, *rope.values()) if isinstance(each, Mapping)]
    found = [each for each in ropes if each.get("rope_type", each.get("type")) in ("longrope", "su")]
    if not found:
        return None
    if fields.raw("original_max_position_embeddings") is not None:
        return min(positions, fields.size("original_max_position_embeddings"))
    lengths = (ConfigReader(each, {}).size_or("original_max_position_embeddings", positions) for each in found)
    return min(positions, *lengths)
