"""WeightFormat, format_of: the format of the weights in a model folder; a new format is a module and a line here."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from chairlift.model.weights.stored_weight import StoredWeight, WeightFile

FORMATS = ("gguf", "awq", "gptq", "compressed_tensors", "fp8", "bitsandbytes", "safetensors")
"""Names of modules in model/weights/formats/; the first one that claims a folder reads it, the last claims all."""


class WeightFormat(Protocol):
    """The interface of a module in model/weights/formats/."""

    def claims(self, folder: Path) -> bool:
        """Return whether the weights in a model folder have this format."""
        ...

    def stored_weights(self, folder: Path, architecture: str) -> Iterator[tuple[str, StoredWeight]]:
        """Yield the canonical name of each parameter (checkpoint.py) and where it is stored; reads headers only.

        Raises ModelError, with the file's name, for a missing, truncated or unreadable file.
        """
        ...

    def stored_files(self, folder: Path) -> Iterator[WeightFile]:
        """Yield the files with weights, always in the same order. Raises as stored_weights does."""
        ...


def is_safetensors(folder: Path) -> bool:
    """Return whether the weights in a model folder are safetensors without a format of their own."""
    return _name_of(folder) == FORMATS[-1]


def format_of(folder: Path) -> WeightFormat:
    """Return the format of the weights in a model folder."""
    return _module(_name_of(folder))


def _name_of(folder: Path) -> str:
    return next(name for name in FORMATS if _module(name).claims(folder))


def _module(name: str) -> WeightFormat:
    return cast("WeightFormat", importlib.import_module(f"chairlift.model.weights.formats.{name}"))
