"""compact_json: JSON to keep for long, in memory of its own size."""

from typing import Any

import orjson


def compact_json(value: Any) -> bytes:
    """Return JSON without the buffer of 4 KB or more that belongs to what orjson returns."""
    return bytes(memoryview(orjson.dumps(value)))
