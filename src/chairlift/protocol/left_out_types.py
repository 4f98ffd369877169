"""LeftOutTypes: types of tools, items and blocks that a request has and the model is not shown."""

MAX_NAMED_TYPES = 16
MAX_TYPE_CHARS = 40


class LeftOutTypes:
    """Collects types, each once, as names for the header of ignored parameters: `tools.web_search`.

    It keeps the first MAX_NAMED_TYPES, and the first MAX_TYPE_CHARS characters of each, because clients choose them.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, field: str, kind: str) -> None:
        """Add a type that a field of the request has."""
        if len(self._names) < MAX_NAMED_TYPES:
            self._names[f"{field}.{kind[:MAX_TYPE_CHARS]}"] = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they came."""
        return tuple(self._names)
