"""config_fields: the content of a config.json from the metadata and the tensor shapes of a GGUF file. Imports no torch.

    key of the file, behind "llama." or "gemma3."      field of config.json
    block_count, embedding_length, ...                 num_hidden_layers, hidden_size, ...
    rope.*                                             gguf_rope.py
    attention.sliding_window(_pattern)                 sliding_window, layer_types
    expert_count, expert_used_count, ...               num_experts, num_experts_per_tok, ...

What only one architecture has its module reads (GGUFArchitecture.read_fields). The fields are in the format of
transformers 4, which transformers 5 and DecoderConfig read as well. Meanings and defaults of absent keys are those of
llama.cpp (llama-model.cpp and models/ of ggml 0.25.3).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.core.numeric_limits import MAX_INT32
from chairlift.model.config.architectures.architecture import GGUFArchitecture, GGUFContents
from chairlift.model.config.gguf_architectures import gguf_architecture
from chairlift.model.config.gguf_metadata_reader import GGUFMetadataReader
from chairlift.model.config.gguf_rope import SCALE_TOLERANCE, rope_fields
from chairlift.model.config.gguf_tensor_names import EMBEDDING, OUTPUT, ROPE_TENSORS, gguf_tensor_name
from chairlift.model.config.model_folder import ORIGINAL, unsupported_model

SMALLEST_SCALE = 1e-4
"""Scale of queries below which no file is right: it would be that of heads with 10**8 dimensions."""

UNIFORM_DTYPES, QUANTIZED_DTYPE = {"F16": "float16", "F32": "float32"}, "bfloat16"
"""Type of all matrices -> dtype in config.json, and the dtype where they have another type or several."""

FLOAT32_MATRICES = re.compile(
    r"blk\.\d+\.(ffn_gate_inp(_shexp)?\.weight|ssm_(conv1d|norm)\.weight|ssm_[ad]|shortconv\.conv\.weight)"
)
"""Small matrices that the converter writes in float32, whatever the type of the others is."""

STACKED_EXPERTS = re.compile(r"blk\.\d+\.ffn_down_exps\.weight")
"""Tensors [experts, hidden_size, neurons]."""

END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Tokens that end a sequence, a turn and a message."""

SOFTMAX_OF_ALL = 1
"""expert_gating_func of routers with a softmax."""


def config_fields(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    name: str,
    *,
    rope_values: Mapping[str, Sequence[float]] | None = None,
    tensor_types: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the content of a config.json, as parse_decoder_config and transformers take it.

    Args:
        metadata: keys and values of the file, or of the first of several.
        tensor_shapes: shapes of the tensors of all files, outermost dimension first.
        name: the file's name, for errors.
        rope_values: values of the tensors of ROPE_TENSORS that the file has, by their names.
        tensor_types: types of the tensors, such as "F16" or "Q4_K"; the dtype is bfloat16 without.

    Raises UnsupportedArchitecture or UnsupportedModel with a remedy, and ModelError for a missing or wrong key.
    """
    architecture = gguf_architecture(metadata, name)
    values = {each: (rope_values or {})[each] for each in ROPE_TENSORS if each in tensor_shapes}
    read = GGUFMetadataReader(metadata, architecture.name, name)
    tokenizer = GGUFMetadataReader(metadata, "tokenizer.ggml", name)
    if not read.flag_or("attention.causal", True):
        raise read.unsupported("attention.causal", "is false, so tokens attend to later ones")
    experts = _experts(read, architecture, tensor_shapes)
    sizes = _sizes(read, architecture, tensor_shapes)
    fields = {
        "architectures": [architecture.architecture],
        "model_type": architecture.model_type,
        "vocab_size": _vocab_size(read, tokenizer, tensor_shapes),
        **sizes,
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": OUTPUT not in tensor_shapes,
        **_biases(architecture, sizes["num_hidden_layers"], tensor_shapes, name),
        **rope_fields(read, architecture, sizes, values),
        **_windows(read, architecture, sizes),
        **_scales(read, architecture, sizes),
        **experts,
        **_tokens(tokenizer),
        "torch_dtype": _dtype(architecture, tensor_shapes, tensor_types or {}),
        **architecture.fields,
    }
    return {**fields, **architecture.read_fields(GGUFContents(read, tensor_shapes, fields))}


def _experts(
    read: GGUFMetadataReader, architecture: GGUFArchitecture, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Return the fields for the number of experts and their neurons. Raises UnsupportedModel and ModelError."""
    count = read.count_or_none("expert_count") or 0
    if not count:
        return {}
    if not architecture.expert_count_field:
        raise read.unsupported("expert_count", f"is {count}, so the model is a mixture of experts")
    stacked = next((shape for name, shape in shapes.items() if STACKED_EXPERTS.fullmatch(name)), ())
    if not stacked:
        raise read.unsupported("expert_count", f"is {count} in a file without tensors of all experts")
    if stacked[0] != count:  # bounds what is built for each expert
        raise read.invalid("expert_count", f"is {count}, but the file has tensors of {stacked[0]} experts")
    if (scale := read.number_or_zero("expert_weights_scale")) not in (0, 1):
        raise read.unsupported("expert_weights_scale", f"is {scale}, not 1")
    if (groups := read.count_or_none("expert_group_count") or 0) > 1:
        raise read.unsupported("expert_group_count", f"is {groups}, not 1")
    if (kind := read.count_or_none("expert_gating_func") or SOFTMAX_OF_ALL) != SOFTMAX_OF_ALL:
        raise read.unsupported("expert_gating_func", f"is {kind}, not that of a softmax")
    key = "expert_feed_forward_length" if "expert_feed_forward_length" in read else "feed_forward_length"
    if (size := read.layer_size(key, read.size("block_count"))) != stacked[-1]:
        raise read.invalid(key, f"is {size}, but experts in the file have {stacked[-1]} neurons")
    return {
        architecture.expert_count_field: count,
        "num_experts_per_tok": read.size("expert_used_count"),
        architecture.expert_size_field: size,
    }


def _sizes(
    read: GGUFMetadataReader, architecture: GGUFArchitecture, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    blocks = read.size("block_count")
    # The blocks behind the layers predict tokens after the next one.
    layers = blocks - (read.count_or_none("nextn_predict_layers") or 0)
    first_module = next(iter(architecture.layer_names))
    last = gguf_tensor_name(f"model.layers.{layers - 1}.{first_module}.weight", architecture)
    if layers < 1 or last not in shapes:
        raise read.invalid("block_count", f"is {blocks}, but the file has no tensor {last}")
    if layers > len(shapes):  # bounds what is built for each layer
        raise read.invalid("block_count", f"is {blocks}, but the file has {len(shapes)} tensors")
    hidden, heads = read.size("embedding_length"), read.layer_size("attention.head_count", blocks)
    kv_heads = _kv_heads(read, architecture, blocks, heads)
    if heads % kv_heads:
        raise read.invalid("attention.head_count_kv", f"is {kv_heads}, which does not divide head_count {heads}")
    own_width, of_experts = "feed_forward_length", "expert_feed_forward_length"
    width = of_experts if own_width not in read and of_experts in read else own_width
    return {
        "hidden_size": hidden,
        "intermediate_size": read.layer_size(width, blocks),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": _head_dim(read, hidden, heads),
        "max_position_embeddings": read.size("context_length"),
    }


def _kv_heads(read: GGUFMetadataReader, architecture: GGUFArchitecture, blocks: int, heads: int) -> int:
    """Return the heads of keys; layers that keep a state may have none."""
    name = "attention.head_count_kv"
    if name not in read:
        return heads
    if not architecture.state_kind or not read.is_list(name):
        return read.layer_size(name, blocks)
    counts = {count for count in read.layer_counts(name, blocks) if count}
    if len(counts) != 1:
        raise read.unsupported(name, f"has {len(counts)} numbers of heads in layers with attention")
    return counts.pop()


def _head_dim(read: GGUFMetadataReader, hidden: int, heads: int) -> int:
    """Return the length of a head's queries, keys and values."""
    if hidden % heads and "attention.key_length" not in read:
        raise read.invalid("attention.head_count", f"is {heads}, which does not divide embedding_length {hidden}")
    head_dim = read.size_or("attention.key_length", hidden // heads)
    values = read.size_or("attention.value_length", hidden // heads)
    if head_dim != values:
        raise read.unsupported("attention.key_length", f"is {head_dim} and differs from that of values, {values}")
    if head_dim % 2:
        raise read.invalid("attention.key_length", f"must be even for RoPE, got {head_dim}")
    return head_dim


def _vocab_size(read: GGUFMetadataReader, tokenizer: GGUFMetadataReader, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the rows of the embedding, which decide; for a file without it, what the keys contain."""
    stated, width = read.size("vocab_size") if "vocab_size" in read else None, read.size("embedding_length")
    if (shape := shapes.get(EMBEDDING)) is None:
        return stated or tokenizer.list_length("tokens")
    if len(shape) != 2 or not 0 < shape[0] <= MAX_INT32 or shape[1] != width:
        reason = f"has shape {shape}, not [vocab_size, embedding_length {width}]"
        raise ModelError(f"{read.file_name}: tensor {EMBEDDING} {reason}", file=read.file_name, tensor=EMBEDDING)
    if "tokens" in tokenizer and (count := tokenizer.list_length("tokens")) > shape[0]:
        reason = f"has {shape[0]} rows for {count} tokens"
        raise ModelError(f"{read.file_name}: tensor {EMBEDDING} {reason}", file=read.file_name, tensor=EMBEDDING)
    return shape[0]


def _biases(
    architecture: GGUFArchitecture, num_layers: int, shapes: Mapping[str, tuple[int, ...]], name: str
) -> dict[str, bool]:
    """Return the fields for biases, which the first layer with attention decides; Checkpoint.check sees the others."""
    projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

    def is_stored(layer: int, parameter: str) -> bool:
        return gguf_tensor_name(f"model.layers.{layer}.{parameter}", architecture) in shapes

    first = next((layer for layer in range(num_layers) if is_stored(layer, "self_attn.q_proj.weight")), 0)

    def has_bias(layer: int, *modules: str) -> bool:
        found = [is_stored(layer, f"{module}.bias") for module in modules]
        if any(found) and not all(found):
            raise unsupported_model(
                f"{name} has biases in a part of {', '.join(modules)} only, which architecture {architecture.name} "
                "does not support", ORIGINAL,
            )  # fmt: skip
        return all(found)

    output = next(
        (each for each in ("self_attn.o_proj", "self_attn.out_proj") if each in architecture.layer_names),
        "self_attn.o_proj",
    )
    return {
        "attention_bias": has_bias(first, *projections, *((output,) if architecture.has_output_bias else ())),
        "mlp_bias": has_bias(0, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    }


def _windows(read: GGUFMetadataReader, architecture: GGUFArchitecture, sizes: Mapping[str, int]) -> dict[str, Any]:
    window, layers = read.count_or_none("attention.sliding_window") or None, sizes["num_hidden_layers"]
    if architecture.has_window:
        return {"sliding_window": window}
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
    if architecture.has_own_scales:
        return {}
    scale, softcap = read.number_or_zero("attention.scale"), read.number_or_zero("final_logit_softcapping")
    scalar = sizes["head_dim"]
    if architecture.has_query_scalar and scale > SMALLEST_SCALE:
        scalar = max(1, round(scale**-2))
    elif architecture.has_query_scalar and sizes["num_hidden_layers"] == architecture.query_scalar_layers:
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
    names = (name for name, shape in shapes.items() if len(shape) > 1 and not FLOAT32_MATRICES.fullmatch(name))
    matrices = {types.get(name) for name in names}
    if len(matrices) != 1 or (matrices == {"F16"} and architecture.exceeds_float16):
        return QUANTIZED_DTYPE
    return UNIFORM_DTYPES.get(matrices.pop() or "", QUANTIZED_DTYPE)
