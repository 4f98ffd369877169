"""weight_bits: the bits of a quantized weight, by the quantization in config.json."""

from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import ConfigError

METHOD_BITS = {"fp8": 8, "mxfp4": 4, "fbgemm_fp8": 8, "awq": 4, "gptq": 4, "bitsandbytes": 8, "compressed-tensors": 8}
"""Bits of a weight by `quant_method` of config.json, where the object itself names none."""

GGUF = "gguf"
"""Method of a GGUF file, whose entry llm/model_inspection.py makes: the bits, with scales, are those of its tensors."""

SCALE_BITS = 16
"""Bits of the scale of a group of quantized weights."""

GROUP_SIZES = {"mxfp4": 32}
"""Weights of a group by method, where the object names none; mxfp4's scale has eight bits instead of SCALE_BITS."""


def weight_bits(quantization: Mapping[str, Any]) -> float:
    """Return the bits of a quantized weight, its share of the scale included. Raises ConfigError for a new method."""
    method = str(quantization.get("quant_method") or "bitsandbytes")
    if method == GGUF:
        return float(quantization["bits"])
    quantization = {**quantization, **_group_weights(quantization)}
    bits = quantization.get("bits") or quantization.get("w_bit")
    if quantization.get("load_in_4bit") or quantization.get("_load_in_4bit"):
        bits = 4
    bits = bits or METHOD_BITS.get(method)
    if not isinstance(bits, int) or not 1 <= bits <= 16:
        raise ConfigError(
            f"config.json: the bits of quant_method {method!r} are unknown; known are {', '.join(METHOD_BITS)}",
            option="model",
        )
    group = quantization.get("group_size") or quantization.get("q_group_size") or GROUP_SIZES.get(method, 0)
    scale = SCALE_BITS // 2 if method == "mxfp4" else SCALE_BITS + bits * (method in ("awq", "gptq"))
    return bits + (scale / group if isinstance(group, int) and group > 0 else 0.0)


def _group_weights(quantization: Mapping[str, Any]) -> dict[str, Any]:
    """Return bits and group size of compressed-tensors' config_groups: those of the group with the most bits."""
    groups = quantization.get("config_groups")
    members = groups.values() if isinstance(groups, dict) else ()
    weights = [each.get("weights") for each in members if isinstance(each, dict)]
    found = [each for each in weights if isinstance(each, dict) and isinstance(each.get("num_bits"), int)]
    if not found:
        return {}
    widest = max(found, key=lambda each: int(each["num_bits"]))
    return {"bits": widest["num_bits"], "group_size": widest.get("group_size")}


def has_plain_attention(quantization: Mapping[str, Any]) -> bool:
    """Return whether the projections of every attention layer are left out of a quantization."""
    left_out = quantization.get("modules_to_not_convert") or quantization.get("ignore") or ()
    names = [str(each).removeprefix("re:") for each in left_out]
    return any("attn" in name and not any(char.isdigit() for char in name) for name in names)
