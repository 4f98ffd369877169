"""quantization_entry, folder_quantization: what a model folder says about quantized weights. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.model.config.gguf_folder import gguf_file_of
from chairlift.model.config.model_folder import ORIGINAL, read_json, unsupported_model

QUANTIZATION_FIELDS = ("quantization_config", "compression_config")
"""Fields of a quantized checkpoint's config.json; the second is that of compressed-tensors."""

QUANTIZATION_NAMES = {"awq": "AWQ", "gptq": "GPTQ"}
"""Methods of quantization_config that are written in another way than the file has them."""

QUANTIZATION_FILES = {"quant_config.json": "awq", "quantize_config.json": "gptq"}
"""File of older folders that has the entry which config.json lacks -> its method, unless the file names another."""

SUPPORTED_METHODS: tuple[str, ...] = (
    "awq", "gptq", "bitsandbytes", "compressed-tensors", "fp8", "fbgemm_fp8", "mxfp4",
)  # fmt: skip
"""Methods whose weights a module in model/weights/formats/ reads; it checks the rest of the entry."""

METHOD_NAMES = {
    "awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "gptq_marlin": "gptq", "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors", "fbgemm_fp8": "fbgemm_fp8", "gguf": "gguf", "mxfp4": "mxfp4",
}  # fmt: skip
"""Values of the option `quantization` in vLLM and SGLang that name the method of a checkpoint -> that method."""


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
    """Return where a folder says how its weights are quantized, for messages, the method and the entry; None without.

    The entry of config.json counts, which may stand in text_config, and without one that of the file which older
    versions of the tools wrote. Raises ModelError for a file that is not JSON.
    """
    config = folder / "config.json"
    content = read_json(config) if config.is_file() else {}
    text = content.get("text_config")
    for each in (content, text):
        if isinstance(each, Mapping) and (found := quantization_entry(each)) is not None:
            return f"{found[0]} in config.json", found[1], found[2]
    for name, method in QUANTIZATION_FILES.items():
        if (folder / name).is_file():
            entry = read_json(folder / name)
            return name, str(entry.get("quant_method") or method), entry
    return None


def quantization_method(folder: Path) -> str | None:
    """Return the method that a folder's weights are quantized by; None without one. Raises as folder_quantization."""
    found = folder_quantization(folder)
    return None if found is None else found[1]


def check_method(folder: Path | None, name: str) -> None:
    """Raise ConfigError unless a model's weights are quantized by a method with this name, a key of METHOD_NAMES.

    `folder` is None for a model without one, of which no weight is quantized. Raises as folder_quantization.
    """
    is_gguf = folder is not None and gguf_file_of(folder) is not None
    found = None if folder is None else "gguf" if is_gguf else quantization_method(folder)
    if found != METHOD_NAMES[name]:
        has = "has no quantized weights" if found is None else f"is quantized by {found}"
        raise ConfigError(
            f"quantization {name!r} is that of another checkpoint: the model {has}; leave quantization out",
            option="quantization",
        )


def method_options(folder: Path) -> tuple[str, Mapping[str, Any]]:
    """Return where a folder that is quantized says how, for messages, and the entry. Raises as folder_quantization."""
    found = folder_quantization(folder)
    assert found is not None, f"{folder} is not quantized"
    return found[0], found[2]


def check_quantization(content: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for the config.json of a checkpoint that is quantized by a method without a format."""
    if (found := quantization_entry(content)) is None or found[1] in SUPPORTED_METHODS:
        return
    field, method, _ = found
    described = f"with {QUANTIZATION_NAMES.get(method, method)} " if method else ""
    raise unsupported_model(
        f"the weights are quantized {described}({field} in config.json), which is not supported", ORIGINAL
    )
