"""LeftOutTypes: types of tools, items and blocks, and members of messages, that the model is not shown."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

MAX_NAMED_TYPES = 16
MAX_TYPE_CHARS = 40


class LeftOutTypes:
    """Collects types and members, each once, as names for the header of ignored parameters: `tools.web_search`.

    It keeps the first MAX_NAMED_TYPES, and the first MAX_TYPE_CHARS characters of each, because clients choose them.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, field: str, kind: str) -> None:
        """Add a type or a member that a field of the request has."""
        if len(self._names) < MAX_NAMED_TYPES:
            self._names[f"{field}.{kind[:MAX_TYPE_CHARS]}"] = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they came."""
        return tuple(self._names)


def unread_members(message: Mapping[str, Any], expected: Collection[str]) -> Iterator[str]:
    """Yield the names of a message's further members; those that are null or empty have nothing to be read."""
    for name, value in message.items():
        if name not in expected and value is not None and value not in ("", [], {}):
            yield name
