"""GGUFMetadataReader: typed reads of a GGUF file's metadata; an error names the file and the key. Imports no torch."""

import reprlib
import struct
from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.core.numeric_limits import MAX_INT32
from chairlift.model.config.model_folder import ORIGINAL, unsupported_model

MAX_FLOAT32 = 3.4028234663852886e38
"""Largest finite float32, the type of most numbers in the metadata."""

FLOAT32_DIGITS = 9
"""Significant decimal digits that tell any two float32 apart."""


class GGUFMetadataReader:
    """The keys of one section: "general", "tokenizer.ggml" or the name of the file's architecture.

    Every method raises ModelError if the key is missing without a fallback, or has the wrong type or range.
    """

    def __init__(self, metadata: Mapping[str, Any], section: str, file_name: str) -> None:
        self._metadata = metadata
        self._section = section
        self.file_name = file_name

    def __contains__(self, name: str) -> bool:
        return f"{self._section}.{name}" in self._metadata

    def is_list(self, name: str) -> bool:
        """Return whether the key is present and its value is an array."""
        return isinstance(self._metadata.get(f"{self._section}.{name}"), list | tuple)

    def text(self, name: str) -> str:
        """Return a text."""
        value = self._required(name)
        if not isinstance(value, str):
            raise self.invalid(name, f"must be a text, got {reprlib.repr(value)}")
        return value

    def text_or(self, name: str, fallback: str) -> str:
        """Return a text, or the fallback if absent."""
        return self.text(name) if name in self else fallback

    def flag_or(self, name: str, fallback: bool) -> bool:
        """Return a boolean, or the fallback if absent."""
        return self._flag(name, self._required(name)) if name in self else fallback

    def layer_flags(self, name: str, num_layers: int) -> list[bool]:
        """Return an array with a boolean, or 0 or 1, for each layer."""
        return [self._flag(name, value) for value in self._layer_values(name, num_layers)]

    def size(self, name: str) -> int:
        """Return an integer of at least 1."""
        return self._integer(name, self._required(name), 1)

    def size_or(self, name: str, fallback: int) -> int:
        """Return an integer of at least 1, or the fallback if absent."""
        return self.size(name) if name in self else fallback

    def count_or_none(self, name: str) -> int | None:
        """Return an integer of at least 0, or None if absent."""
        return self._integer(name, self._required(name), 0) if name in self else None

    def layer_size(self, name: str, num_layers: int) -> int:
        """Return an integer of at least 1 that all layers share; the value may be an array with one for each layer.

        Raises UnsupportedModel if the layers differ.
        """
        if not self.is_list(name):
            return self.size(name)
        values = self._layer_values(name, num_layers)
        different = {self._integer(name, value, 0) for value in values}
        if len(different) > 1:
            raise self.unsupported(name, f"differs between layers ({reprlib.repr(sorted(different))})")
        return self._integer(name, values[0], 1)

    def layer_counts(self, name: str, num_layers: int) -> list[int]:
        """Return an array with an integer of at least 0 for each layer."""
        return [self._integer(name, value, 0) for value in self._layer_values(name, num_layers)]

    def list_length(self, name: str) -> int:
        """Return the length of an array that is not empty."""
        if length := len(self._list(name)):
            return length
        raise self.invalid(name, "is empty")

    def number(self, name: str) -> float:
        """Return a finite number above 0."""
        value = self._required(name)
        if number := self.number_or_zero(name):
            return number
        raise self.invalid(name, f"must be a number above 0, got {value}")

    def number_or(self, name: str, fallback: float) -> float:
        """Return a finite number above 0, or the fallback if absent."""
        return self.number(name) if name in self else fallback

    def number_or_zero(self, name: str) -> float:
        """Return a finite number of at least 0, or 0 if absent, which for many keys is the same."""
        value = self._required(name) if name in self else 0.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(name, f"must be a number, got {reprlib.repr(value)}")
        if not 0 <= value <= MAX_FLOAT32:
            raise self.invalid(name, f"must be a finite number of at least 0, got {reprlib.repr(value)}")
        return shortest_float32(float(value))

    def invalid(self, name: str, reason: str) -> ModelError:
        """Build the error for a key with a wrong value."""
        message = f"{self.file_name}: {self._section}.{name} {reason}"
        return ModelError(message, file=self.file_name, field=f"{self._section}.{name}")

    def unsupported(self, name: str, reason: str) -> UnsupportedModel:
        """Build the error for a key with a value that Chairlift does not support."""
        return unsupported_model(f"{self.file_name}: {self._section}.{name} {reason}, which is not supported", ORIGINAL)

    def _required(self, name: str) -> Any:
        if name not in self:
            raise self.invalid(name, "is missing")
        return self._metadata[f"{self._section}.{name}"]

    def _list(self, name: str) -> list[Any]:
        value = self._required(name)
        if not isinstance(value, list | tuple):
            raise self.invalid(name, f"must be an array, got {reprlib.repr(value)}")
        return list(value)

    def _layer_values(self, name: str, num_layers: int) -> list[Any]:
        values = self._list(name)
        if len(values) != num_layers:
            raise self.invalid(name, f"has {len(values)} values for {num_layers} layers")
        return values

    def _flag(self, name: str, value: Any) -> bool:
        if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
            return bool(value)
        raise self.invalid(name, f"must be true or false, got {reprlib.repr(value)}")

    def _integer(self, name: str, value: Any, minimum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, f"must be an integer, got {reprlib.repr(value)}")
        if not minimum <= value <= MAX_INT32:
            raise self.invalid(name, f"must be between {minimum} and {MAX_INT32}, got {reprlib.repr(value)}")
        return value


def shortest_float32(value: float) -> float:
    """Return the number of fewest decimal digits with the same float32; a number that is no float32 is unchanged.

    The converter rounded 1e-6 of config.json to a float32, which is 9.99999997e-07 as a Python float.
    """
    if _float32(value) != value:
        return value
    shorter = (float(f"{value:.{digits}g}") for digits in range(1, FLOAT32_DIGITS + 1))
    return next((number for number in shorter if abs(number) <= MAX_FLOAT32 and _float32(number) == value), value)


def _float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
