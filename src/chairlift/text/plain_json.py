"""plain_json: copies JSON data, so that a chat template gets no object with methods of its own."""

from collections.abc import Mapping
from typing import Any

from chairlift.core.validation import invalid_param

MAX_DEPTH = 32
"""Nesting of objects and lists in a message, a tool or a template variable."""


def plain_json(value: Any, at: str, depth: int = 0) -> Any:
    """Return JSON data as dict, list, str, int, float, bool and None.

    Raises InvalidRequest that names the place `at` for other data and for more than MAX_DEPTH levels.
    """
    if depth > MAX_DEPTH:
        raise invalid_param(at, f"is nested deeper than {MAX_DEPTH} levels")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise invalid_param(at, "has a key that is not a string")
        return {str.__str__(key): plain_json(item, f"{at}.{key[:40]}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, f"{at}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise invalid_param(at, f"must be JSON data, got {type(value).__name__}")
