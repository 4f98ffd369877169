"""config_fields: the content of a config.json from the metadata and the tensor shapes of a GGUF file. Imports no torch.

    key of the file, behind "llama." or "gemma3."      field of config.json
    block_count, embedding_length, ...                 num_hidden_layers, hidden_size, ...
    rope.freq_base, rope.freq_base_swa                 rope_theta, rope_local_base_freq
    rope.scaling.*, tensor rope_freqs.weight           rope_scaling
    attention.sliding_window(_pattern)                 sliding_window, layer_types

The fields are in the format of transformers 4, which transformers 5 and DecoderConfig read as well. Meanings and
defaults of absent keys are those of llama.cpp (llama-model.cpp and models/ of ggml 0.25.3).
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.core.numeric_limits import MAX_INT32
from chairlift.model.config.architectures.architecture import GGUFArchitecture
from chairlift.model.config.gguf_architectures import gguf_architecture
from chairlift.model.config.gguf_metadata_reader import MAX_FLOAT32, GGUFMetadataReader, shortest_float32
from chairlift.model.config.gguf_tensor_names import EMBEDDING, OUTPUT, ROPE_DIVISORS, gguf_tensor_name
from chairlift.model.config.model_folder import ORIGINAL, unsupported_model

DEFAULT_ROPE_BASE = 10000.0
"""Base of RoPE for a file without one, and that of layers with a sliding window."""

GEMMA3_27B_LAYERS = 62
"""Layers of the one size of Gemma 3 whose scale of queries comes from hidden_size / heads, not from head_dim."""

SMALLEST_SCALE = 1e-4
"""Scale of queries below which no file is right: it would be that of heads with 10**8 dimensions."""

SCALE_TOLERANCE = 1e-5
"""Relative difference up to which the file's attention.scale, a float32, is the scale of an architecture."""

UNIFORM_DTYPES, QUANTIZED_DTYPE = {"F16": "float16", "F32": "float32"}, "bfloat16"
"""Type of all matrices -> dtype in config.json, and the dtype where they have another type or several."""

END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Tokens that end a sequence, a turn and a message."""


def config_fields(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    name: str,
    *,
    rope_divisors: Sequence[float] | None = None,
    tensor_types: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the content of a config.json, as parse_decoder_config and transformers take it.

    Args:
        metadata: keys and values of the file, or of the first of several.
        tensor_shapes: shapes of the tensors of all files, outermost dimension first.
        name: the file's name, for errors.
        rope_divisors: values of the tensor rope_freqs.weight; needed if the file has it.
        tensor_types: types of the tensors, such as "F16" or "Q4_K"; the dtype is bfloat16 without.

    Raises UnsupportedArchitecture or UnsupportedModel with a remedy, and ModelError for a missing or wrong key.
    """
    architecture = gguf_architecture(metadata, name)
    read = GGUFMetadataReader(metadata, architecture.name, name)
    tokenizer = GGUFMetadataReader(metadata, "tokenizer.ggml", name)
    _check_features(read)
    sizes = _sizes(read, architecture, tensor_shapes)
    return {
        "architectures": [architecture.architecture],
        "model_type": architecture.model_type,
        "vocab_size": _vocab_size(read, tokenizer, tensor_shapes),
        **sizes,
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": OUTPUT not in tensor_shapes,
        **_biases(architecture, tensor_shapes, name),
        **_rope(read, architecture, sizes, rope_divisors if ROPE_DIVISORS in tensor_shapes else ()),
        **_windows(read, architecture, sizes),
        **_scales(read, architecture, sizes),
        **_tokens(tokenizer),
        "torch_dtype": _dtype(architecture, tensor_shapes, tensor_types or {}),
        **architecture.fields,
    }


def _check_features(read: GGUFMetadataReader) -> None:
    """Raise UnsupportedModel for what changes the tokens and no supported architecture has."""
    if experts := read.count_or_none("expert_count"):
        raise read.unsupported("expert_count", f"is {experts}, so the model is a mixture of experts")
    if not read.flag_or("attention.causal", True):
        raise read.unsupported("attention.causal", "is false, so tokens attend to later ones")


def _sizes(
    read: GGUFMetadataReader, architecture: GGUFArchitecture, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    layers = read.size("block_count")
    last = gguf_tensor_name(f"model.layers.{layers - 1}.input_layernorm.weight", architecture)
    if last not in shapes:
        raise read.invalid("block_count", f"is {layers}, but the file has no tensor {last}")
    if layers > len(shapes):  # bounds what is built for each layer
        raise read.invalid("block_count", f"is {layers}, but the file has {len(shapes)} tensors")
    hidden, heads = read.size("embedding_length"), read.layer_size("attention.head_count", layers)
    kv_heads = read.layer_size("attention.head_count_kv", layers) if "attention.head_count_kv" in read else heads
    if heads % kv_heads:
        raise read.invalid("attention.head_count_kv", f"is {kv_heads}, which does not divide head_count {heads}")
    return {
        "hidden_size": hidden,
        "intermediate_size": read.layer_size("feed_forward_length", layers),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": _head_dim(read, hidden, heads),
        "max_position_embeddings": read.size("context_length"),
    }


def _head_dim(read: GGUFMetadataReader, hidden: int, heads: int) -> int:
    """Return the length of a head's queries, keys and values."""
    if hidden % heads and "attention.key_length" not in read:
        raise read.invalid("attention.head_count", f"is {heads}, which does not divide embedding_length {hidden}")
    head_dim = read.size_or("attention.key_length", hidden // heads)
    values = read.size_or("attention.value_length", hidden // heads)
    if head_dim != values:
        raise read.unsupported("attention.key_length", f"is {head_dim} and differs from that of values, {values}")
    rotated = read.size_or("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise read.unsupported("rope.dimension_count", f"is {rotated} of {head_dim} dimensions of a head")
    if head_dim % 2:
        raise read.invalid("attention.key_length", f"must be even for RoPE, got {head_dim}")
    return head_dim


def _vocab_size(read: GGUFMetadataReader, tokenizer: GGUFMetadataReader, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the rows of the embedding, which decide; for a file without it, what the keys contain."""
    stated = read.size("vocab_size") if "vocab_size" in read else None
    if (shape := shapes.get(EMBEDDING)) is None:
        return stated or tokenizer.list_length("tokens")
    if len(shape) != 2 or not 0 < shape[0] <= MAX_INT32:
        reason = f"has shape {shape}, not [vocab_size, embedding_length]"
        raise ModelError(f"{read.file_name}: tensor {EMBEDDING} {reason}", file=read.file_name, tensor=EMBEDDING)
    if "tokens" in tokenizer and (count := tokenizer.list_length("tokens")) > shape[0]:
        reason = f"has {shape[0]} rows for {count} tokens"
        raise ModelError(f"{read.file_name}: tensor {EMBEDDING} {reason}", file=read.file_name, tensor=EMBEDDING)
    return shape[0]


def _biases(architecture: GGUFArchitecture, shapes: Mapping[str, tuple[int, ...]], name: str) -> dict[str, bool]:
    """Return the fields for biases, which layer 0 decides; the weights of the other layers are checked against them."""

    def has_bias(*modules: str) -> bool:
        found = [gguf_tensor_name(f"model.layers.0.{module}.bias", architecture) in shapes for module in modules]
        if any(found) and not all(found):
            raise unsupported_model(
                f"{name} has biases in a part of {', '.join(modules)} only, which architecture {architecture.name} "
                "does not support", ORIGINAL,
            )  # fmt: skip
        return all(found)

    projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output = ("self_attn.o_proj",) if architecture.has_output_bias else ()
    return {
        "attention_bias": has_bias(*projections, *output),
        "mlp_bias": has_bias("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    }


def _rope(
    read: GGUFMetadataReader, architecture: GGUFArchitecture, sizes: Mapping[str, int], divisors: Sequence[float] | None
) -> dict[str, Any]:
    """Return the fields of RoPE; `divisors` is empty for a file without them."""
    assert divisors is not None, f"the values of tensor {ROPE_DIVISORS} are missing"
    scaling = _scaling(read, sizes["max_position_embeddings"])
    if len(divisors):
        if scaling is not None:
            raise read.unsupported("rope.scaling.type", f"is {scaling['rope_type']} beside tensor {ROPE_DIVISORS}")
        scaling = _scaling_by_divisors(divisors, sizes, read.file_name)
    base = {"rope_theta": read.number_or("rope.freq_base", DEFAULT_ROPE_BASE)}
    if architecture.full_layer_period is not None:
        base["rope_local_base_freq"] = read.number_or("rope.freq_base_swa", DEFAULT_ROPE_BASE)
    return {**base, "rope_scaling": scaling}


def _scaling(read: GGUFMetadataReader, max_positions: int) -> dict[str, Any] | None:
    """Return rope_scaling as the keys describe it, None without. A factor without a type is a linear one."""
    kind = read.text_or("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise read.unsupported("rope.scaling.type", f"is {reprlib.repr(kind)}, not none, linear or yarn")
    if alpha := read.number_or_zero("rope.scaling.alpha"):
        raise read.unsupported("rope.scaling.alpha", f"is {alpha}")
    old_factor = read.number_or_zero("rope.scale_linear")
    factor = (read.number_or_zero("rope.scaling.factor") if "rope.scaling.factor" in read else old_factor) or 1.0
    multiplier = read.number_or("rope.scaling.attn_factor", 1.0)
    if kind == "yarn":
        return _yarn(read, factor, multiplier, max_positions)
    if multiplier != 1:
        raise read.unsupported("rope.scaling.attn_factor", f"is {multiplier} for the type {kind}")
    return None if kind == "none" or factor == 1 else {"rope_type": "linear", "factor": factor}


def _yarn(read: GGUFMetadataReader, factor: float, multiplier: float, max_positions: int) -> dict[str, Any]:
    """Return rope_scaling of type yarn.

    The converter writes attention_factor of config.json as yarn_attn_factor; `multiplier` is on that or its default.
    """
    extrapolation = "rope.scaling.yarn_ext_factor"
    if extrapolation in read and read.number_or_zero(extrapolation) != 1:
        raise read.unsupported(extrapolation, f"is {read.number_or_zero(extrapolation)}, not 1")
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": read.size_or("rope.scaling.original_context_length", max_positions),
        "beta_fast": read.number_or_zero("rope.scaling.yarn_beta_fast") or 32.0,
        "beta_slow": read.number_or_zero("rope.scaling.yarn_beta_slow") or 1.0,
    }
    attention_factor = read.number_or_zero("rope.scaling.yarn_attn_factor")
    log_multiplier = read.number_or_zero("rope.scaling.yarn_log_multiplier")
    if multiplier != 1 and log_multiplier:
        raise read.unsupported("rope.scaling.attn_factor", f"is {multiplier} beside yarn_log_multiplier")
    if multiplier != 1:
        default = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
        scaling["attention_factor"] = multiplier * (attention_factor or default)
    elif attention_factor:
        scaling["attention_factor"] = attention_factor
    elif log_multiplier:
        scaling |= {"mscale": 1.0, "mscale_all_dim": log_multiplier}
    return scaling


def _scaling_by_divisors(divisors: Sequence[float], sizes: Mapping[str, int], name: str) -> dict[str, Any]:
    """Return rope_scaling with one divisor for each frequency, into which the converter turned RoPE "llama3".

    transformers' longrope is this, where the factors of short and long sequences are the same.
    """
    if len(divisors) != sizes["head_dim"] // 2:
        raise _wrong_divisors(name, f"has {len(divisors)} values for {sizes['head_dim'] // 2} frequencies")
    factors = [float(divisor) for divisor in divisors]
    if wrong := [factor for factor in factors if not 0 < factor <= MAX_FLOAT32]:
        raise _wrong_divisors(name, f"must have finite numbers above 0, got {wrong[0]}")
    factors = [shortest_float32(factor) for factor in factors]
    return {
        "rope_type": "longrope",
        "factor": 1.0,
        "attention_factor": 1.0,
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": sizes["max_position_embeddings"],
    }


def _wrong_divisors(name: str, reason: str) -> ModelError:
    return ModelError(f"{name}: tensor {ROPE_DIVISORS} {reason}", file=name, tensor=ROPE_DIVISORS)


def _windows(read: GGUFMetadataReader, architecture: GGUFArchitecture, sizes: Mapping[str, int]) -> dict[str, Any]:
    window, layers = read.count_or_none("attention.sliding_window") or None, sizes["num_hidden_layers"]
    if architecture.full_layer_period is None:
        if window is not None and window < sizes["max_position_embeddings"]:
            raise read.unsupported("attention.sliding_window", f"is {window} in an architecture without windows")
        return {}
    pattern = "attention.sliding_window_pattern"
    if read.is_list(pattern):
        slides = read.layer_flags(pattern, layers)
    else:
        period = read.count_or_none(pattern)
        period = architecture.full_layer_period if period is None else period
        slides = [period == 0 or layer % period < period - 1 for layer in range(layers)]
    kinds = ["sliding_attention" if window and is_sliding else "full_attention" for is_sliding in slides]
    return {"sliding_window": window, "layer_types": kinds}


def _scales(read: GGUFMetadataReader, architecture: GGUFArchitecture, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields for the scale of queries and the cap of logits, where the architecture has them."""
    scale, softcap = read.number_or_zero("attention.scale"), read.number_or_zero("final_logit_softcapping")
    scalar = sizes["head_dim"]
    if architecture.has_query_scalar and scale > SMALLEST_SCALE:
        scalar = max(1, round(scale**-2))
    elif architecture.has_query_scalar and sizes["num_hidden_layers"] == GEMMA3_27B_LAYERS:
        scalar = max(1, sizes["hidden_size"] // sizes["num_attention_heads"])
    if scale and abs(scale - scalar**-0.5) > SCALE_TOLERANCE * scale:
        raise read.unsupported("attention.scale", f"is {scale}, not {scalar**-0.5:.6g}")
    if architecture.has_query_scalar:
        return {"query_pre_attn_scalar": scalar, "final_logit_softcapping": softcap or None}
    if softcap:
        raise read.unsupported("final_logit_softcapping", f"is {softcap} in an architecture without a cap")
    return {}


def _tokens(tokenizer: GGUFMetadataReader) -> dict[str, Any]:
    """Return the tokens that begin and end; null where there is none, as an absent field has a default."""
    ends = [token for name in END_TOKENS if (token := tokenizer.count_or_none(name)) is not None]
    distinct = list(dict.fromkeys(ends))
    return {
        "bos_token_id": tokenizer.count_or_none("bos_token_id"),
        "eos_token_id": distinct if len(distinct) > 1 else next(iter(distinct), None),
    }


def _dtype(
    architecture: GGUFArchitecture, shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, str]
) -> str:  # fmt: skip
    """Return the dtype of all matrices if they have one that is not quantized, else bfloat16."""
    matrices = {types.get(name) for name, shape in shapes.items() if len(shape) > 1}
    if len(matrices) != 1 or (matrices == {"F16"} and architecture.exceeds_float16):
        return QUANTIZED_DTYPE
    return UNIFORM_DTYPES.get(matrices.pop() or "", QUANTIZED_DTYPE)
