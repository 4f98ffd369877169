"""split_fields: checks which fields a request body has, by the table of its route."""

from collections.abc import Mapping
from typing import Any

from chairlift.core.validation import format_value, invalid_param, string
from chairlift.protocol.request_fields import MAX_MODEL_CHARS, Effect, Field
from chairlift.protocol.request_schemas import CONTINUOUS_USAGE, INCLUDE_USAGE

MAX_EXACT = 2**53
"""Up to this absolute value every integer is a float."""

SHOWN_ID_CHARS = 80


def split_fields(body: Mapping[str, Any], table: Mapping[str, Field]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the used fields, without nulls, and the names of the ignored ones. Raises InvalidRequest.

    An empty name of a model is as absent.
    """
    fields: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in body.items():
        field = table.get(name)
        if field is not None and (value is None or (name == "model" and value == "")):
            continue
        if field is None or field.effect is Effect.IGNORED:
            ignored.append(name)
        elif field.effect is Effect.REFUSED:
            if not any(type(value) is type(each) and value == each for each in field.neutral):
                raise invalid_param(name, f"is not supported: {field.help}")
        else:
            fields[name] = as_integer(value) if field.schema.get("type") == "integer" else value
    for name, field in table.items():
        if field.required and name not in fields:
            raise invalid_param(name, "is missing")
    if "model" in fields:
        string("model", fields["model"], MAX_MODEL_CHARS)
    if "stream_options" in fields:
        ignored += _ignored_options(fields)
    return fields, tuple(ignored)


def as_integer(value: Any) -> Any:
    """Return a number without a fraction, such as 3.0, as an integer; other values stay.

    Integers of more than 64 bits arrive as floats, which are other numbers: floats beyond MAX_EXACT stay, too.
    """
    is_exact = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT
    return int(value) if is_exact else value


def format_short(value: Any) -> str:
    """Format a value for an error message; a value that may be nested deeply is shown by its type."""
    if isinstance(value, str):
        return repr(value[:40])
    return format_value(value)[:40] if isinstance(value, int | float) else type(value).__name__


def shown_id(value: str) -> str:
    """Return a client's id for an error message: its beginning, without characters that are not plain."""
    return "".join(char for char in value[:SHOWN_ID_CHARS] if " " < char <= "~")


def string_member(value: Mapping[str, Any], name: str, at: str) -> str:
    """Return a string of an object whose place in the body is `at`. Raises InvalidRequest."""
    member = value.get(name)
    if not isinstance(member, str):
        raise invalid_param(f"{at}.{name}", f"must be a string, got {format_short(member)}")
    return member


def call_arguments(value: Any, at: str) -> str | dict[str, Any] | None:
    """Return the arguments of an earlier call as they are; chat completions read all their forms.

    Raises InvalidRequest.

    Args:
        value: an object, the text of one, which may be cut off, or None for no arguments.
        at: their place in the body.
    """
    if not isinstance(value, str | dict | None):
        raise invalid_param(at, f"must be an object or its text, got {format_short(value)}")
    return value


def _ignored_options(fields: Mapping[str, Any]) -> list[str]:
    """Return the names of stream_options without effect: all of them unless stream is true.

    Without include_usage no chunk has counts, as in vLLM.
    """
    options = fields["stream_options"]
    if not isinstance(options, dict):
        raise invalid_param("stream_options", f"must be an object, got {type(options).__name__}")
    if fields.get("stream") is not True:
        return ["stream_options"]
    used = (INCLUDE_USAGE, CONTINUOUS_USAGE) if options.get(INCLUDE_USAGE) else (INCLUDE_USAGE,)
    return [
        f"stream_options.{name}" for name, value in options.items()
        if name not in used and not (name == CONTINUOUS_USAGE and not value)
    ]  # fmt: skip
