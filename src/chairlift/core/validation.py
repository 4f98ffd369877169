"""Validation of single parameter values: returns plain values; errors name the field and its bound."""

from numbers import Integral, Real
from typing import Any

from chairlift.core.errors import InvalidRequest


def invalid_param(param: str, message: str) -> InvalidRequest:
    """Return the error for one field; `message` has the value and the bound."""
    return InvalidRequest(f"{param} {message}", param=param)


def format_value(value: Any) -> str:
    """Format a value for a message; an integer of more than 20 digits becomes "a huge number"."""
    return "a huge number" if isinstance(value, int) and abs(value) >= 10**20 else str(value)


def number(param: str, value: Any, low: float, high: float, *, open_low: bool = False) -> float:
    """Return a real number (numpy's too) as a float; reject one outside [low, high] or (low, high]."""
    if isinstance(value, bool) or not issubclass(type(value), Real):
        raise invalid_param(param, f"must be a number, got {type(value).__name__}")
    if not low <= value <= high or (open_low and value == low):
        bound = f"greater than {low:g} and at most {high:g}" if open_low else f"between {low:g} and {high:g}"
        raise invalid_param(param, f"must be {bound}, got {format_value(value)}")
    return float(value)


def integer(param: str, value: Any, low: int, high: int) -> int:
    """Return an integer (numpy's too) as an int; reject one that is not in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise invalid_param(param, f"must be an integer, got {type(value).__name__}")
    plain = int(value)
    if not low <= plain <= high:
        raise invalid_param(param, f"must be between {low} and {high}, got {format_value(plain)}")
    return plain


def boolean(param: str, value: Any) -> bool:
    """Return a bool; reject every other type."""
    if not isinstance(value, bool):
        raise invalid_param(param, f"must be true or false, got {type(value).__name__}")
    return value


def as_tuple(param: str, value: Any, limit: int, single: type) -> tuple[Any, ...]:
    """Return the entries of a list or tuple as a tuple; a single entry gives one, None an empty tuple."""
    if value is None:
        return ()
    if isinstance(value, single):
        return (value,)
    if not isinstance(value, list | tuple):
        raise invalid_param(param, f"must be a list, got {type(value).__name__}")
    if len(value) > limit:
        raise invalid_param(param, f"has {len(value)} entries, the limit is {limit}")
    return tuple(value)


def token_ids(param: str, value: Any, limit: int, highest: int) -> tuple[int, ...]:
    """Return a list of token ids, or a single one, as a tuple of ints from 0 to `highest`."""
    return tuple(integer(param, token, 0, highest) for token in as_tuple(param, value, limit, Integral))


def string(param: str, value: Any, limit: int, *, least: int = 1) -> str:
    """Return a plain string of `least` to `limit` characters that UTF-8 can encode."""
    return _plain_string(param, value, least, limit, "must be a string")


def strings(param: str, value: Any, limit: int, max_chars: int) -> tuple[str, ...]:
    """Return a list of at most `limit` strings of 1 to `max_chars` characters, or a single one, as a tuple."""
    entries = as_tuple(param, value, limit, str)
    return tuple(_plain_string(param, entry, 1, max_chars, "must contain strings") for entry in entries)


def _plain_string(param: str, value: Any, least: int, limit: int, must: str) -> str:
    if not isinstance(value, str):
        raise invalid_param(param, f"{must}, got {type(value).__name__}")
    if not least <= len(value) <= limit:
        raise invalid_param(param, f"{must} of {least} to {limit} characters, got {len(value)}")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise invalid_param(param, "must be valid Unicode, got half of a surrogate pair")
    return str.__str__(value)
