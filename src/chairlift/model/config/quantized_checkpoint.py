"""check_quantization, folder_quantization: how config.json says weights are quantized. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.model.config.model_folder import ORIGINAL, read_json, unsupported_model

QUANTIZATION_FIELDS = ("quantization_config", "compression_config")
"""Fields of a quantized checkpoint's config.json; the second is that of compressed-tensors."""

QUANTIZATION_NAMES = {"awq": "AWQ", "gptq": "GPTQ"}
"""Methods of quantization_config that are written in another way than the file has them."""

SUPPORTED_METHODS: tuple[str, ...] = ("compressed-tensors", "fp8", "fbgemm_fp8")
"""Methods whose weights a module in model/weights/formats/ reads; it checks the rest of the entry."""


def quantization_entry(content: Mapping[str, Any]) -> tuple[str, str | None, Mapping[str, Any]] | None:
    """Return the field of config.json that says how weights are quantized, its method and itself; None without one."""
    field = next((name for name in QUANTIZATION_FIELDS if content.get(name)), None)
    if field is None:
        return None
    entry = content[field] if isinstance(content[field], Mapping) else {}
    method = entry.get("quant_method")
    if method is None and (entry.get("load_in_4bit") or entry.get("load_in_8bit")):
        method = "bitsandbytes"
    return field, None if method is None else str(method), entry


def folder_quantization(folder: Path) -> tuple[str, str | None, Mapping[str, Any]] | None:
    """Return the quantization_entry of a model folder, which may stand in text_config; None without config.json."""
    file = folder / "config.json"
    content = read_json(file) if file.is_file() else {}
    text = content.get("text_config")
    found = quantization_entry(content)
    return quantization_entry(text) if found is None and isinstance(text, Mapping) else found


def check_quantization(content: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for the config.json of a checkpoint that is quantized by a method without a format."""
    if (found := quantization_entry(content)) is None or found[1] in SUPPORTED_METHODS:
        return
    field, method, _ = found
    described = f"with {QUANTIZATION_NAMES.get(method, method)} " if method else ""
    raise unsupported_model(
        f"the weights are quantized {described}({field} in config.json), which is not supported", ORIGINAL
    )
