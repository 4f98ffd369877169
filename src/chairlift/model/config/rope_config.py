"""RopeConfig: the rotation of a layer's queries and keys, read from config.json in either format. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from chairlift.model.config.config_reader import ConfigReader

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
TRANSFORMERS_ROPE_TYPES = ("longrope", "su", "proportional")
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
        divisors: longrope, one for each frequency, for sequences of every length.
        attention_factor: yarn and longrope, on cosine and sine; None is computed from `factor` and the two mscales.
        beta_fast: yarn, rotations at which interpolation begins.
        beta_slow: yarn, rotations at which it is complete.
        mscale: yarn.
        mscale_all_dim: yarn.
        truncate: yarn, whether its range is rounded to whole dimensions.
    """

    type: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    divisors: tuple[float, ...] = ()
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


def read_ropes(fields: ConfigReader, max_positions: int, *, by_layer_type: bool) -> tuple[RopeConfig, RopeConfig]:
    """Read the rotations of full and of sliding layers.

    Args:
        fields: fields of config.json.
        max_positions: max_position_embeddings of config.json.
        by_layer_type: Gemma 3: scaling applies to full layers, sliding layers have their own base.

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
    return _rope(full, fields, max_positions), _rope(sliding, fields, max_positions)


def lacking_feature(problem: str) -> UnsupportedArchitecture:
    """Return the error for a feature that Chairlift's own architectures do not have and transformers has."""
    remedy = "use model_impl 'transformers', whose modules may have it"
    return UnsupportedArchitecture(f"config.json: {problem}", remedy=remedy)


def _nested(parameters: Mapping[str, Any], kind: str) -> dict[str, Any]:
    value = parameters.get(kind) or {}
    if not isinstance(value, Mapping):
        raise ModelError(f"config.json: rope_parameters.{kind} must be an object")
    return {name: entry for name, entry in value.items() if entry is not None}


def _rope(content: Mapping[str, Any], fields: ConfigReader, max_positions: int) -> RopeConfig:
    """Build one rotation as `standardize_rope_params` of transformers 5.23 modeling_rope_utils and its callers do."""
    read = ConfigReader(content, {"type": "default"})
    name = "rope_type" if "rope_type" in read else "type"
    divisors = _divisors(read) if read.get(name) in LONG_ROPE_TYPES else ()
    if read.get(name) in TRANSFORMERS_ROPE_TYPES and not divisors:
        raise lacking_feature(f"{name} {read.get(name)!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    kind = "longrope" if divisors else read.choice(name, ROPE_TYPES)
    if (read.number_or_none("partial_rotary_factor") or fields.number_or_none("partial_rotary_factor") or 1.0) != 1.0:
        raise lacking_feature("partial_rotary_factor is not supported")
    theta = read.number("rope_theta")
    if kind == "default":
        return RopeConfig(theta=theta)
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


def _divisors(read: ConfigReader) -> tuple[float, ...]:
    """Return the factors of a longrope whose rotation no length changes; empty for another one."""
    factors = read.get("short_factor")
    if not isinstance(factors, list) or factors != read.get("long_factor") or "attention_factor" not in read:
        return ()
    return tuple(ConfigReader({"short_factor": factor}, {}).number("short_factor") for factor in factors)
