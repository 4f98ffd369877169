"""new_response_id, item_id, response_id_of: ids name their response; the bytes of ResponseStore bound its memory."""

import tracemalloc
from typing import Any

import pytest

from chairlift.core.errors import NotFound
from chairlift.protocol.responses.response_ids import item_id, new_response_id, response_id_of
from chairlift.protocol.responses.response_store import ResponseStore

ITEM = {"type": "message", "role": "user", "content": "Hi"}


def response(response_id: str, previous_id: str | None = None, text: str = "") -> dict[str, Any]:
    output = [{"id": item_id("msg", response_id, 0), "type": "message", "text": text}]
    return {"id": response_id, "previous_response_id": previous_id, "output": output}


@pytest.mark.share(1)
@pytest.mark.parametrize("num_chars", [0, 900, 5000])
def test_its_bytes_are_those_of_the_memory(num_chars: int) -> None:
    store, items = ResponseStore(4_000_000), [{**ITEM, "content": "a" * num_chars}]
    store.add("tenant", response(new_response_id(), text="b" * num_chars), items)  # what is allocated once
    tracemalloc.start()
    try:
        for _ in range(6000):
            store.add("tenant", response(new_response_id(), text="b" * num_chars), items)
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.num_bytes / 8 < num_bytes < store.num_bytes <= store.max_bytes


def test_ids_name_their_response_and_are_not_shown_raw() -> None:
    first, second = new_response_id(), new_response_id()
    assert first != second and len(first) > 40 and response_id_of(item_id("msg", first, 12)) == first
    with pytest.raises(NotFound) as caught:
        ResponseStore(1).response("", "resp_\r\nx: y" + "z" * 1000)
    assert "\n" not in caught.value.message and len(caught.value.message) < 300
