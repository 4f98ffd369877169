"""RopeConfig: the rotation of a layer's queries and keys, read from config.json in either format. Imports no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from chairlift.model.config.config_reader import ConfigReader, invalid_field

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "proportional")
TRANSFORMERS_ROPE_TYPES = ("longrope", "su")
"""Types that only transformers' modules compute."""

LONG_ROPE_TYPES = ("longrope", "su")
"""Names of a rotation with factors for each frequency; only one whose long and short factors are equal is supported."""

KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """The parameters of one rotation, named as in transformers.

    Attributes:
        type: one of ROPE_TYPES, or "longrope".
        theta: base of the wavelengths.
        factor: ratio of the longest sequence to the original length.
        original_length: tokens of a sequence in pretraining (llama3, yarn); for dynamic the length without scaling.
        low_freq_factor: llama3.
        high_freq_factor: llama3.
        divisors: longrope, one for each frequency.
        long_divisors: longrope, instead of `divisors` for sequences that may be longer than the original length; empty
            where the divisors are for sequences of every length.
        attention_factor: yarn and longrope, on cosine and sine; None is computed from `factor` and the two mscales.
        beta_fast: yarn, rotations at which interpolation begins.
        beta_slow: yarn, rotations at which it is complete.
        mscale: yarn.
        mscale_all_dim: yarn.
        truncate: yarn, whether its range is rounded to whole dimensions.
        rotary_dim: elements of a head that rotate, the first ones; 0 for all.
        rotated_share: proportional: share of the angles of a head that are not 0; the others follow them.
        is_interleaved: whether elements 2i and 2i + 1 rotate together, and not i and i + rotary_dim / 2.
    """

    type: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    rotary_dim: int = 0
    rotated_share: float = 1.0
    is_interleaved: bool = False

    def for_length(self, num_tokens: int) -> "RopeConfig":
        """Return the rotation of sequences of up to num_tokens tokens."""
        if not self.long_divisors:
            return self
        divisors = self.long_divisors if num_tokens > self.original_length else self.divisors
        return replace(self, divisors=divisors, long_divisors=())

    def row_order(self, head_dim: int) -> tuple[int, ...] | None:
        """Return the elements of a head of the checkpoint in the order of the model; None for the same order.

        In the model elements i and i + head_dim / 2 rotate together. Those that do not rotate have the angle 0.
        """
        rotary_dim = self.rotary_dim or head_dim
        if rotary_dim == head_dim and not self.is_interleaved:
            return None
        half, rest = rotary_dim // 2, (head_dim - rotary_dim) // 2
        step, second = (2, 1) if self.is_interleaved else (1, half)
        left, right = range(0, step * half, step), range(second, second + step * half, step)
        middle = rotary_dim + rest
        return (*left, *range(rotary_dim, middle), *right, *range(middle, head_dim))


def read_ropes(
    fields: ConfigReader,
    max_positions: int,
    *,
    by_layer_type: bool,
    head_dim: int = 0,
    is_interleaved: bool = False,
    long_types: tuple[str, ...] = LONG_ROPE_TYPES,
) -> tuple[RopeConfig, RopeConfig]:
    """Read the rotations of full and of sliding layers.

    Args:
        fields: fields of config.json.
        max_positions: max_position_embeddings of config.json.
        by_layer_type: Gemma 3: scaling applies to full layers, sliding layers have their own base.
        head_dim: of an architecture in which a part of a head may rotate, and longrope may have two lists of factors;
            0 for another one.
        is_interleaved: see RopeConfig.
        long_types: names of a longrope with two lists of factors.

    Raises UnsupportedArchitecture for a rotation that only transformers has, ModelError for missing or wrong values.
    """
    scaling, parameters = fields.object("rope_scaling"), fields.object("rope_parameters")
    nested = [kind for kind in KINDS if kind in parameters]
    if by_layer_type:
        if parameters and not nested:
            raise ModelError(f"config.json: rope_parameters must have {' and '.join(KINDS)} in this architecture")
        full = {"rope_theta": fields.get("rope_theta"), **_nested(parameters, "full_attention"), **scaling}
        sliding = {"rope_theta": fields.get("rope_local_base_freq"), **_nested(parameters, "sliding_attention")}
    elif nested:
        raise lacking_feature("rope_parameters for each layer type are not supported in this architecture")
    else:
        # transformers 5 prefers rope_scaling where both are present.
        full = sliding = {"rope_theta": fields.get("rope_theta"), **(scaling or parameters)}
    if not head_dim:
        return _rope(full, fields, max_positions), _rope(sliding, fields, max_positions)
    return (
        _partial_rope(full, fields, max_positions, head_dim, is_interleaved, long_types),
        _partial_rope(sliding, fields, max_positions, head_dim, is_interleaved, long_types),
    )


def lacking_feature(problem: str) -> UnsupportedArchitecture:
    """Return the error for a feature that Chairlift's own architectures do not have and transformers has."""
    remedy = "use model_impl 'transformers', whose modules may have it"
    return UnsupportedArchitecture(f"config.json: {problem}", remedy=remedy)


def _nested(parameters: Mapping[str, Any], kind: str) -> dict[str, Any]:
    value = parameters.get(kind) or {}
    if not isinstance(value, Mapping):
        raise ModelError(f"config.json: rope_parameters.{kind} must be an object")
    return {name: entry for name, entry in value.items() if entry is not None}


def _rope(
    content: Mapping[str, Any], fields: ConfigReader, max_positions: int, *, is_partial: bool = False
) -> RopeConfig:
    """Build one rotation as `standardize_rope_params` of transformers 5.23 modeling_rope_utils and its callers do."""
    read = ConfigReader(content, {"type": "default"})
    name = "rope_type" if "rope_type" in read else "type"
    divisors = _divisors(read) if read.get(name) in LONG_ROPE_TYPES else ()
    if read.get(name) in TRANSFORMERS_ROPE_TYPES and not divisors:
        raise lacking_feature(f"{name} {read.get(name)!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    kind = "longrope" if divisors else read.choice(name, ROPE_TYPES)
    share = read.number_or_none("partial_rotary_factor") or fields.number_or_none("partial_rotary_factor") or 1.0
    if share != 1.0 and not is_partial and kind != "proportional":
        raise lacking_feature("partial_rotary_factor is not supported")
    theta = read.number("rope_theta")
    if kind == "yarn" and theta == 1.0:
        raise invalid_field("rope_theta", "must not be 1 for yarn")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "proportional":
        if share > 1:
            raise invalid_field("partial_rotary_factor", f"must be at most 1 for proportional, got {share}")
        return RopeConfig(
            type=kind, theta=theta, factor=read.number_or_none("factor") or 1.0, rotated_share=share
        )  # fmt: skip
    if kind == "longrope":
        factor = read.number("attention_factor")
        return RopeConfig(type=kind, theta=theta, divisors=divisors, attention_factor=factor)
    if kind in ("linear", "dynamic"):
        return RopeConfig(type=kind, theta=theta, factor=read.number("factor"), original_length=max_positions)
    # A length outside the rope object is the checkpoint's pretraining length and takes precedence (Phi 3's layout).
    stated = fields.raw("original_max_position_embeddings")
    owner = fields if stated is not None else read
    length = owner.size_or("original_max_position_embeddings", max_positions)
    if kind == "llama3":
        return RopeConfig(
            type=kind, theta=theta, factor=read.number("factor"), original_length=length,
            low_freq_factor=read.number("low_freq_factor"), high_freq_factor=read.number("high_freq_factor"),
        )  # fmt: skip
    return RopeConfig(
        type=kind, theta=theta, factor=read.number_or_none("factor") or max_positions / length, original_length=length,
        attention_factor=read.number_or_none("attention_factor"),
        beta_fast=read.number_or_none("beta_fast") or 32.0, beta_slow=read.number_or_none("beta_slow") or 1.0,
        mscale=read.number_or_none("mscale"), mscale_all_dim=read.number_or_none("mscale_all_dim"),
        truncate=read.flag_or("truncate", True),
    )  # fmt: skip


def _partial_rope(
    content: Mapping[str, Any],
    fields: ConfigReader,
    max_positions: int,
    head_dim: int,
    is_interleaved: bool,
    long_types: tuple[str, ...],
) -> RopeConfig:
    """Build one rotation of an architecture in which a part of a head may rotate."""
    read = ConfigReader(content, {"type": "default"})
    share = read.number_or_none("partial_rotary_factor") or fields.number_or_none("partial_rotary_factor") or 1.0
    rotary_dim = int(head_dim * min(share, 2.0))
    if share > 1 or rotary_dim < 2 or rotary_dim % 2:
        raise invalid_field("partial_rotary_factor", f"{share} of head_dim {head_dim} is no even number up to it")
    name = "rope_type" if "rope_type" in read else "type"
    if read.get(name) == "proportional":
        raise lacking_feature(f"{name} 'proportional' is not supported in this architecture")
    if read.get(name) in long_types:
        rope = _long_rope(read, fields, max_positions, rotary_dim)
    else:
        without = {key: value for key, value in content.items() if key != "partial_rotary_factor"}
        rope = _rope(without, fields, max_positions, is_partial=True)
    return replace(rope, rotary_dim=0 if rotary_dim == head_dim else rotary_dim, is_interleaved=is_interleaved)


def _long_rope(read: ConfigReader, fields: ConfigReader, max_positions: int, rotary_dim: int) -> RopeConfig:
    """Build a "longrope" with factors for short and for long sequences."""
    owner = fields if fields.get("original_max_position_embeddings") is not None else read
    length = owner.size_or("original_max_position_embeddings", max_positions)
    short, long = (read.numbers(name) for name in ("short_factor", "long_factor"))
    for name, factors in (("short_factor", short), ("long_factor", long)):
        if len(factors) != rotary_dim // 2:
            raise ModelError(
                f"config.json: RoPE has {len(factors)} factors for {rotary_dim // 2} frequencies", field=name
            )
    factor = read.number_or_none("factor") or max_positions / length
    scale = read.number_or_none("attention_factor")
    if scale is None and factor > 1 and length == 1:
        raise invalid_field("original_max_position_embeddings", "must be at least 2 for longrope, got 1")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    return RopeConfig(
        type="longrope", theta=read.number("rope_theta"), factor=factor, original_length=length, divisors=short,
        long_divisors=() if short == long else long, attention_factor=scale,
    )  # fmt: skip


def _divisors(read: ConfigReader) -> tuple[float, ...]:
    """Return the factors of a longrope whose rotation no length changes; empty for another one."""
    factors = read.get("short_factor")
    if not isinstance(factors, list) or factors != read.get("long_factor") or "attention_factor" not in read:
        return ()
    return read.numbers("short_factor")
