"""check_not_quantized: refuses the config.json of a quantized checkpoint. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from chairlift.model.config.model_folder import ORIGINAL, unsupported_model

QUANTIZATION_FIELDS = ("quantization_config", "compression_config")
"""Fields of a quantized checkpoint's config.json; the second is that of compressed-tensors."""

QUANTIZATION_NAMES = {"awq": "AWQ", "gptq": "GPTQ"}
"""Methods of quantization_config that are written in another way than the file has them."""


def check_not_quantized(content: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for the config.json of a quantized checkpoint."""
    field = next((name for name in QUANTIZATION_FIELDS if content.get(name)), None)
    if field is None:
        return
    entry = content[field]
    method = entry.get("quant_method") if isinstance(entry, Mapping) else None
    if method is None and isinstance(entry, Mapping) and (entry.get("load_in_4bit") or entry.get("load_in_8bit")):
        method = "bitsandbytes"
    described = f"with {QUANTIZATION_NAMES.get(str(method), method)} " if method else ""
    raise unsupported_model(
        f"the weights are quantized {described}({field} in config.json); quantized checkpoints are not "
        "supported", ORIGINAL,
    )  # fmt: skip
