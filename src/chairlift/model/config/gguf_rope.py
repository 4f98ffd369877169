"""rope_fields: the fields of config.json for RoPE from the metadata and tensors of a GGUF file. Imports no torch.

key of the file, behind "llama." or "phi3."                     field of config.json
rope.freq_base, rope.freq_base_swa                              rope_theta, rope_local_base_freq
rope.scaling.*, tensor rope_freqs.weight                        rope_scaling
tensors rope_factors_short.weight, rope_factors_long.weight     rope_scaling, of type longrope
rope.dimension_count                                            partial_rotary_factor
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.architecture import GGUFArchitecture
from chairlift.model.config.gguf_metadata_reader import MAX_FLOAT32, GGUFMetadataReader, shortest_float32
from chairlift.model.config.gguf_tensor_names import LONG_FACTORS, ROPE_DIVISORS, SHORT_FACTORS

DEFAULT_ROPE_BASE = 10000.0
"""Base of RoPE for a file without one."""

SCALE_TOLERANCE = 1e-5
"""Relative difference up to which a factor in the file, a float32, is the one that config.json would have."""


def rope_fields(
    read: GGUFMetadataReader,
    architecture: GGUFArchitecture,
    sizes: Mapping[str, int],
    values: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """Return the fields of RoPE.

    Args:
        read: keys of the architecture.
        architecture: of the file.
        sizes: head_dim and max_position_embeddings of config.json.
        values: of the tensors of ROPE_TENSORS that the file has, by their names.

    Raises UnsupportedModel and ModelError.
    """
    theta = read.number_or("rope.freq_base", DEFAULT_ROPE_BASE)
    fields: dict[str, Any] = {"rope_theta": theta}
    if architecture.full_layer_period is not None:
        window_theta = read.number_or("rope.freq_base_swa", architecture.window_rope_base or theta)
        if architecture.window_rope_base is not None:
            fields["rope_local_base_freq"] = window_theta
        elif window_theta != theta:
            raise read.unsupported("rope.freq_base_swa", f"is {window_theta}, rope.freq_base is {theta}")
    rotated = read.size_or("rope.dimension_count", sizes["head_dim"])
    if architecture.has_partial_rotation or rotated != sizes["head_dim"]:
        fields["partial_rotary_factor"] = _share(read, architecture, rotated, sizes["head_dim"])
    if architecture.has_long_rope and (SHORT_FACTORS in values or LONG_FACTORS in values):
        return {**fields, **_long_rope(read, sizes, rotated, values)}
    scaling = _scaling(read, sizes["max_position_embeddings"])
    if ROPE_DIVISORS in values:
        if scaling is not None:
            raise read.unsupported("rope.scaling.type", f"is {scaling['rope_type']} beside tensor {ROPE_DIVISORS}")
        factors = _factors(read.file_name, ROPE_DIVISORS, values, rotated)
        scaling = _same_factors(factors, sizes["max_position_embeddings"])
    return {**fields, "rope_scaling": scaling}


def _share(read: GGUFMetadataReader, architecture: GGUFArchitecture, rotated: int, head_dim: int) -> float:
    """Return partial_rotary_factor, from which config.json's readers compute the rotated dimensions again."""
    if not architecture.has_partial_rotation:
        raise read.unsupported("rope.dimension_count", f"is {rotated} of {head_dim} dimensions of a head")
    if rotated > head_dim or rotated % 2:
        raise read.invalid("rope.dimension_count", f"is {rotated}, not an even number up to {head_dim}")
    share = rotated / head_dim
    return share if int(head_dim * share) == rotated else math.nextafter(share, 1.0)


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


def _long_rope(
    read: GGUFMetadataReader, sizes: Mapping[str, int], rotated: int, values: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Return the fields of a longrope, whose two lists of factors are tensors."""
    short, long = (_factors(read.file_name, name, values, rotated) for name in (SHORT_FACTORS, LONG_FACTORS))
    positions = sizes["max_position_embeddings"]
    length = read.size_or("rope.scaling.original_context_length", positions)
    factor, scale = positions / length, read.number_or("rope.scaling.attn_factor", 1.0)
    usual = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 and length > 1 else 1.0
    scaling = {
        "rope_type": "longrope", "short_factor": short, "long_factor": long, "factor": factor,
        "original_max_position_embeddings": length,
        "attention_factor": usual if abs(scale - usual) <= SCALE_TOLERANCE * scale else scale,
    }  # fmt: skip
    return {"rope_scaling": scaling, "original_max_position_embeddings": length}


def _same_factors(factors: list[float], max_positions: int) -> dict[str, Any]:
    """Return rope_scaling with one divisor for each frequency, into which the converter turned RoPE "llama3".

    transformers' longrope is this, where the factors of short and long sequences are the same.
    """
    return {
        "rope_type": "longrope",
        "factor": 1.0,
        "attention_factor": 1.0,
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": max_positions,
    }


def _factors(file_name: str, name: str, values: Mapping[str, Sequence[float]], rotated: int) -> list[float]:
    """Return the numbers of a tensor of factors. Raises ModelError for a missing one, and for wrong numbers."""
    factors = [float(factor) for factor in values.get(name, ())]
    if len(factors) != rotated // 2:
        raise _wrong_factors(file_name, name, f"has {len(factors)} values for {rotated // 2} frequencies")
    if wrong := [factor for factor in factors if not 0 < factor <= MAX_FLOAT32]:
        raise _wrong_factors(file_name, name, f"must have finite numbers above 0, got {wrong[0]}")
    return [shortest_float32(factor) for factor in factors]


def _wrong_factors(file_name: str, name: str, reason: str) -> ModelError:
    return ModelError(f"{file_name}: tensor {name} {reason}", file=file_name, tensor=name)
