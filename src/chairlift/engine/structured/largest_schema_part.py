"""describe_size: names the largest part of a structured output, for the error of one that is too large."""

from typing import Any

from chairlift.core.structured_output import StructuredOutput

MIN_ENTRIES = 32
"""Entries of a part that may be the reason why a schema is too large."""

MAX_POINTER_CHARS = 100


def describe_size(structured: StructuredOutput) -> str:
    """Return the largest part of a JSON Schema with its number of entries, or the number of characters."""
    count, pointer = _largest_part(structured.schema)
    if count >= MIN_ENTRIES:
        return f"its largest part is {pointer[:MAX_POINTER_CHARS] or '/'} with {count} entries"
    return f"it has {structured.size} characters"


def _largest_part(schema: Any) -> tuple[int, str]:
    """Return the most entries that one list or object in a schema has, and its JSON pointer."""
    largest = (0, "")
    pending: list[tuple[Any, str]] = [(schema, "")]
    while pending:
        value, pointer = pending.pop()
        if isinstance(value, dict | list):
            if len(value) > largest[0]:
                largest = (len(value), pointer)
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            pending += [(each, f"{pointer}/{key}") for key, each in inner if isinstance(each, dict | list)]
    return largest
