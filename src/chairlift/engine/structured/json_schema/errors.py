"""UnsupportedSchemaError: a keyword of a JSON Schema that no grammar enforces; short_reason cuts long messages."""

MAX_REASON_CHARS = 240
"""Characters of a message that are kept; the names of properties in its JSON pointer can be of any length."""


class UnsupportedSchemaError(ValueError):
    """A keyword that cannot be enforced; its message begins with the place, a JSON pointer."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place or '/'} {reason}")
        self.place = place


def short_reason(error: ValueError) -> str:
    """Return the message of an error, without the middle if it is longer than MAX_REASON_CHARS."""
    reason, half = str(error), MAX_REASON_CHARS // 2
    return reason if len(reason) <= MAX_REASON_CHARS else f"{reason[:half]} ... {reason[-half:]}"
