"""compact_json: the JSON that orjson writes, in memory of its own size."""

import sys

import orjson

from chairlift.protocol.json_without_spare_memory import compact_json


def test_json_without_a_buffer() -> None:
    value = {"a": [1, "ü", None]}
    written = compact_json(value)
    assert written == orjson.dumps(value)
    assert sys.getsizeof(written) == sys.getsizeof(bytes(len(written)))
