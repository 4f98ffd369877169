"""GGUF_ARCHITECTURES, gguf_architecture: the architectures of GGUF files that are supported. Imports no torch.

Source: names of llama.cpp's converter, gguf 0.19.
"""

import reprlib
from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.config.architectures.architecture import GGUFArchitecture
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.gguf_metadata_reader import GGUFMetadataReader
from chairlift.model.config.model_folder import ORIGINAL, unsupported_model

VISION_ARCHITECTURE = "clip"
"""general.architecture of a file that holds the vision or audio part of a model (mmproj)."""

MODEL_TYPE = "model"
"""general.type of a model; others are LoRA adapters, vision parts and calibration data."""

GGUF_ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    each.gguf.name: each.gguf for each in ARCHITECTURES.values() if each.gguf is not None
}
"""Value of `general.architecture` -> what it means."""


def gguf_architecture(metadata: Mapping[str, Any], file_name: str) -> GGUFArchitecture:
    """Return the entry of a file's architecture.

    Raises UnsupportedModel for a file that holds no model of text, UnsupportedArchitecture for another architecture,
    ModelError for a file that names none.
    """
    general = GGUFMetadataReader(metadata, "general", file_name)
    name, kind = general.text("architecture"), general.text_or("type", MODEL_TYPE)
    if name == VISION_ARCHITECTURE:
        raise unsupported_model(
            f"{file_name} is the vision or audio part of a model (general.architecture {name!r})",
            "use the file of the language model",
        )
    if kind != MODEL_TYPE:
        raise unsupported_model(
            f"{file_name} has general.type {reprlib.repr(kind)}, so it is not a model", "use the file of the model"
        )
    if name not in GGUF_ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"{file_name} has architecture {reprlib.repr(name)}, and of GGUF files {', '.join(GGUF_ARCHITECTURES)} are "
            f"supported; {ORIGINAL}", remedy=ORIGINAL,
        )  # fmt: skip
    return GGUF_ARCHITECTURES[name]
