"""WeightFormat, format_of: the format of the weights in a model folder; a new format is a module and a line here."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from chairlift.model.weights.stored_weight import StoredWeight

FORMATS = ("safetensors",)
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


def format_of(folder: Path) -> WeightFormat:
    """Return the format of the weights in a model folder."""
    modules = (importlib.import_module(f"chairlift.model.weights.formats.{name}") for name in FORMATS)
    return next(each for each in (cast("WeightFormat", module) for module in modules) if each.claims(folder))
