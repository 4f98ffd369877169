"""ConfigReader: typed reads of config.json fields with defaults; an error names the invalid field."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.core.numeric_limits import MAX_INT32
from chairlift.model.device.dtypes import DTYPES, parse_dtype

NO_TOKEN = -1
"""Id with which some configs say that there is no such token."""


def invalid_field(name: str, reason: str) -> ModelError:
    """Build the error for one field of config.json."""
    return ModelError(f"config.json: {name} {reason}", field=name)


class ConfigReader:
    """A JSON object and the defaults of absent fields. Null counts as absent unless a method's docstring differs.

    Every method raises ModelError if the field is missing without a default, or has the wrong type or range.
    """

    def __init__(self, content: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._content = content
        self._defaults = defaults

    def with_defaults(self, defaults: Mapping[str, Any]) -> "ConfigReader":
        """Return a reader of the same object with other defaults."""
        return ConfigReader(self._content, defaults)

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None or self._defaults.get(name) is not None

    def get(self, name: str) -> Any:
        """Return the value as it is, else the default, else None."""
        value = self._content.get(name)
        return self._defaults.get(name) if value is None else value

    def raw(self, name: str) -> Any:
        """Return the value in the object itself, without defaults."""
        return self._content.get(name)

    def size(self, name: str) -> int:
        """Return an integer of at least 1."""
        return self._integer(name, self._required(name), 1)

    def size_or(self, name: str, fallback: int) -> int:
        """Return an integer of at least 1, or the fallback without value and default."""
        return self.size(name) if name in self else fallback

    def size_or_none(self, name: str) -> int | None:
        """Return an integer of at least 1; here a null in the object is a value and means None."""
        if name in self._content and self._content[name] is None:
            return None
        return self.size(name) if name in self else None

    def count(self, name: str) -> int:
        """Return an integer of at least 0."""
        return self._integer(name, self._required(name), 0)

    def number(self, name: str) -> float:
        """Return a finite number above 0."""
        value = self._required(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid_field(name, f"must be a number, got {value!r}")
        try:
            is_finite = math.isfinite(value)
        except OverflowError:  # an integer that no float holds
            is_finite = False
        if not is_finite or value <= 0:
            raise invalid_field(name, f"must be a finite number above 0, got {value!r}")
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        """Return a finite number above 0, or None if absent."""
        return self.number(name) if name in self else None

    def number_or_null(self, name: str) -> float | None:
        """Return a finite number above 0; here a null in the object is a value and means None."""
        return None if name in self._content and self._content[name] is None else self.number_or_none(name)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of finite numbers above 0."""
        value = self._required(name)
        if not isinstance(value, list):
            raise invalid_field(name, "must be a list of numbers")
        return tuple(ConfigReader({name: each}, {}).number(name) for each in value)

    def indices(self, name: str, count: int) -> tuple[int, ...] | None:
        """Return a list of integers from 0 to count - 1, or None if absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise invalid_field(name, "must be a list of integers")
        found = tuple(self._integer(name, item, 0) for item in value)
        if wrong := [item for item in found if item >= count]:
            raise invalid_field(name, f"has {wrong[0]}, but there are {count}")
        return found

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self._required(name)
        if not isinstance(value, bool):
            raise invalid_field(name, f"must be true or false, got {value!r}")
        return value

    def flags(self, name: str) -> tuple[bool, ...] | None:
        """Return a list of booleans, which may be written as 0 and 1, or None if absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, int) and item in (0, 1) for item in value):
            raise invalid_field(name, "must be a list of 0 and 1")
        return tuple(bool(item) for item in value)

    def flag_or(self, name: str, fallback: bool) -> bool:
        """Return a boolean, or the fallback if absent."""
        return self.flag(name) if name in self else fallback

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the choices."""
        value = self._required(name)
        if value not in choices:
            raise invalid_field(name, f"{value!r} is not supported; supported are {', '.join(choices)}")
        return str(value)

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return a list of strings, or None if absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise invalid_field(name, "must be a list of strings")
        return tuple(value)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return one id, or a list of ids, as a tuple, without nulls and -1; empty if the field is absent."""
        if name in self._content and self._content[name] is None:
            return ()
        value = self.get(name)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        return tuple(dict.fromkeys(self._integer(name, item, 0) for item in items if item not in (None, NO_TOKEN)))

    def dtype(self) -> str | None:
        """Return the name of the checkpoint's dtype, one of DTYPES, or None if absent; either format of config.json."""
        name = self.get("dtype") or self.get("torch_dtype")
        if name is None:
            return None
        if (dtype := parse_dtype(name)) is None:
            raise ModelError(f"config.json: dtype {name!r} is not supported; supported are {', '.join(DTYPES)}")
        return dtype

    def object(self, name: str) -> dict[str, Any]:
        """Return a copy of a JSON object; empty if absent."""
        value = self.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise invalid_field(name, f"must be an object, got {type(value).__name__}")
        return dict(value)

    def _required(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise invalid_field(name, "is missing")
        return value

    @staticmethod
    def _integer(name: str, value: Any, minimum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid_field(name, f"must be an integer, got {value!r}")
        if not minimum <= value <= MAX_INT32:
            raise invalid_field(name, f"must be between {minimum} and {MAX_INT32}, got {value}")
        return value
