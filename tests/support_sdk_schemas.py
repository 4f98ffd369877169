"""checked: a JSON object against the type that another project's client publishes for it, strictly."""

from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

T = TypeVar("T")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the kind's validator; that of a union of many events takes a fifth of a second to make."""
    return TypeAdapter(kind)


def checked(kind: type[T] | Any, value: Any, extra: frozenset[str] = frozenset()) -> T:
    """Return the value as its type. Fails for a missing field, another type, and a field the type does not have.

    `extra` are names of fields that the type may lack.
    """
    result: T = _adapter(kind).validate_python(value)
    unknown = [name for name in _extra_fields(result, "") if name.rpartition(".")[2] not in extra]
    assert not unknown, f"{kind} has no field {unknown}"
    return result


def _extra_fields(value: Any, path: str) -> list[str]:
    if isinstance(value, BaseModel):
        found = [f"{path}.{name}" for name in value.model_extra or {}]
        for name in type(value).model_fields:
            found += _extra_fields(getattr(value, name), f"{path}.{name}")
        return found
    if isinstance(value, list):
        return [name for entry in value for name in _extra_fields(entry, path)]
    return []


def checked_closely(kind: type[T] | Any, value: Any, extra: frozenset[str] = frozenset()) -> T:
    """Return the value as its type, as `checked` does, also for types that drop the fields that they do not have."""
    try:
        _adapter(kind).validate_python(value, extra="forbid")
    except ValidationError as error:
        wrong = [each for each in error.errors() if each["type"] != "extra_forbidden" or each["loc"][-1] not in extra]
        assert not wrong, wrong
    result: T = _adapter(kind).validate_python(value)
    return result
