"""as_engine_error, error_fields, encode_value: errors and numbers in messages between processes."""

from numbers import Integral, Real
from typing import Any

from chairlift.core.errors import ChairliftError, Detail, EngineDead


def as_engine_error(error: BaseException, message: str) -> ChairliftError:
    """Return a ChairliftError as it is, another error as EngineDead with `message` in front of it."""
    return error if isinstance(error, ChairliftError) else EngineDead(f"{message}: {type(error).__name__}: {error}")


def _detail(value: Any) -> Detail:
    """Convert a detail of an error to a type that msgpack can encode."""
    if value is None:
        return None
    if isinstance(value, Integral) and -(2**63) <= int(value) < 2**64:
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Integral):
        return float(value)
    return str(value).encode("utf-8", "replace").decode()


def error_fields(error: ChairliftError) -> tuple[str, str, dict[str, Detail]]:
    """Return code, message and details of an error, as msgpack can encode them; error_from_wire takes them."""
    message = error.message.encode("utf-8", "replace").decode()
    return error.code, message, {name: _detail(value) for name, value in error.details.items()}


def encode_value(value: Any) -> Any:
    """Return an error, or a number of another library, as a value of msgpack. Raises TypeError for anything else."""
    if isinstance(value, ChairliftError):
        return error_fields(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} cannot be sent to another process")
