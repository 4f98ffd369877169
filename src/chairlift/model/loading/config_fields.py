"""Fields: typed reads from the object in config.json, with defaults; a wrong value ends with the field's name."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.core.errors import ModelError

MAX_SIZE = 2**31 - 1


def refuse(name: str, said: str) -> ModelError:
    """Make the error for one field of config.json."""
    return ModelError(f"config.json: {name} {said}", field=name)


class Fields:
    """A JSON object and what holds where it is silent. A null counts as silence, but where a reader says otherwise.

    Every reader raises ModelError when the field is missing without a default, or has the wrong type or range.
    """

    def __init__(self, content: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._content = content
        self._defaults = defaults

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None or self._defaults.get(name) is not None

    def get(self, name: str) -> Any:
        """Return the value as it is, else the default, else None."""
        value = self._content.get(name)
        return self._defaults.get(name) if value is None else value

    def stated(self, name: str) -> Any:
        """Return what the object itself says, without defaults."""
        return self._content.get(name)

    def size(self, name: str) -> int:
        """Return an integer of at least 1."""
        return self._whole(name, self._needed(name), 1)

    def size_or(self, name: str, fallback: int) -> int:
        """Return an integer of at least 1, or the fallback where there is neither value nor default."""
        return self.size(name) if name in self else fallback

    def size_or_none(self, name: str) -> int | None:
        """Return an integer of at least 1; here a null in the object is a value and means None."""
        if name in self._content and self._content[name] is None:
            return None
        return self.size(name) if name in self else None

    def count(self, name: str) -> int:
        """Return an integer of at least 0."""
        return self._whole(name, self._needed(name), 0)

    def number(self, name: str) -> float:
        """Return a finite number above 0."""
        value = self._needed(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refuse(name, f"must be a number, got {value!r}")
        if not math.isfinite(value) or value <= 0:
            raise refuse(name, f"must be a finite number above 0, got {value!r}")
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        """Return a finite number above 0, or None where nothing is said."""
        return self.number(name) if name in self else None

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self._needed(name)
        if not isinstance(value, bool):
            raise refuse(name, f"must be true or false, got {value!r}")
        return value

    def flag_or(self, name: str, fallback: bool) -> bool:
        """Return a boolean, or the fallback where nothing is said."""
        return self.flag(name) if name in self else fallback

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the choices."""
        value = self._needed(name)
        if value not in choices:
            raise refuse(name, f"{value!r} is not supported; supported are {', '.join(choices)}")
        return str(value)

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return a list of strings, or None where nothing is said."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise refuse(name, "must be a list of strings")
        return tuple(value)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return one id, or a list of ids, as a tuple; empty where the object says null or nothing is known."""
        if name in self._content and self._content[name] is None:
            return ()
        value = self.get(name)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        return tuple(dict.fromkeys(self._whole(name, item, 0) for item in items))

    def object(self, name: str) -> dict[str, Any]:
        """Return a copy of a JSON object; empty where nothing is said."""
        value = self.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise refuse(name, f"must be an object, got {type(value).__name__}")
        return dict(value)

    def _needed(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise refuse(name, "is missing")
        return value

    @staticmethod
    def _whole(name: str, value: Any, low: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise refuse(name, f"must be an integer, got {value!r}")
        if not low <= value <= MAX_SIZE:
            raise refuse(name, f"must be between {low} and {MAX_SIZE}, got {value}")
        return value
