"""ResponseStore: bounded, separate for each tenant, and whole conversations."""

import json
from typing import Any

import pytest

from chairlift.core.errors import NotFound
from chairlift.protocol.responses.response_ids import item_id
from chairlift.protocol.responses.response_store import ENTRY_OVERHEAD_BYTES, ResponseStore
from support_shares import FULL

ITEM = {"type": "message", "role": "user", "content": "Hi"}


def response(response_id: str, previous_id: str | None = None, text: str = "") -> dict[str, Any]:
    output = [{"id": item_id("msg", response_id, 0), "type": "message", "text": text}]
    return {"id": response_id, "previous_response_id": previous_id, "output": output}


def items_of(store: ResponseStore, tenant: str, response_id: str) -> list[Any]:
    return [json.loads(part) for part in store.conversation(tenant, response_id)]


def test_a_stored_response_is_found_by_its_tenant_only() -> None:
    store, first = ResponseStore(10**6), response("resp_a")
    store.add("alice", first, [ITEM])
    assert store.response("alice", "resp_a") == first and store.input_items("alice", "resp_a") == [ITEM]
    assert items_of(store, "alice", "resp_a") == [[ITEM], first["output"]]
    for read in (store.response, store.input_items, store.conversation, store.delete):
        with pytest.raises(NotFound, match="no response resp_a is stored"):
            read("bob", "resp_a")
    assert store.output("bob", "resp_a") is None and store.output("alice", "resp_x") is None
    assert json.loads(store.output("alice", "resp_a") or b"") == first["output"]


def test_a_conversation_has_all_its_turns_in_order() -> None:
    store = ResponseStore(10**6)
    turns = [response("resp_a"), response("resp_b", "resp_a"), response("resp_c", "resp_b")]
    for number, turn in enumerate(turns):
        store.add("", turn, [{"number": number}])
    assert items_of(store, "", "resp_c") == [
        [{"number": 0}], turns[0]["output"], [{"number": 1}], turns[1]["output"], [{"number": 2}], turns[2]["output"],
    ]  # fmt: skip
    store.delete("", "resp_a")
    with pytest.raises(NotFound, match="resp_a"):
        store.conversation("", "resp_c")


def test_the_end_of_an_unused_conversation_is_dropped_first() -> None:
    size = ResponseStore(10**6)
    size.add("", response("resp_0a", "resp_xx"), [ITEM])
    store = ResponseStore(4 * size.num_bytes)
    for name, previous in (("resp_a1", None), ("resp_a2", "resp_a1"), ("resp_b1", None), ("resp_b2", "resp_b1")):
        store.add("", response(name, previous), [ITEM])
    store.conversation("", "resp_a2")
    store.add("", response("resp_a3", "resp_a2"), [ITEM])
    assert len(store.conversation("", "resp_a3")) == 6
    with pytest.raises(NotFound):
        store.response("", "resp_b2")
    assert store.response("", "resp_b1")["id"] == "resp_b1"


def test_the_tenant_that_has_most_loses_its_own_responses() -> None:
    store = ResponseStore(20 * ENTRY_OVERHEAD_BYTES)
    store.add("alice", response("resp_a"), [ITEM])
    for number in range(100):
        store.add("bob", response(f"resp_b{number}"), [ITEM])
    assert store.response("alice", "resp_a") and store.response("bob", "resp_b99")
    with pytest.raises(NotFound):
        store.response("bob", "resp_b0")
    store.delete("alice", "resp_a")
    for number in range(80, 100):
        if store.output("bob", f"resp_b{number}") is not None:
            store.delete("bob", f"resp_b{number}")
    assert store.num_bytes == len(store) == 0


def test_many_creations_do_not_make_it_grow() -> None:
    store = ResponseStore(50 * ENTRY_OVERHEAD_BYTES)
    previous: str | None = None
    largest = 0
    for number in range(100_000 if FULL else 5_000):
        name = f"resp_{number:x}"
        store.add(f"tenant{number % 7}", {"id": name, "previous_response_id": previous, "output": []}, [])
        previous = name if number % 10 else None
        largest = max(largest, store.num_bytes, len(store) * ENTRY_OVERHEAD_BYTES)
    assert largest <= store.max_bytes and 0 < len(store) < 50


def test_what_is_larger_than_the_store_is_not_stored() -> None:
    store = ResponseStore(2000)
    assert store.add("", response("resp_small"), [])
    assert not store.add("", response("resp_large", text="a" * 2000), [])
    assert store.response("", "resp_small") and len(store) == 1
    none = ResponseStore(0)
    assert not none.add("", response("resp_small"), [])
    assert len(none) == 0 and not none.is_enabled and store.is_enabled


def test_a_conversation_that_is_larger_than_the_store_is_not_said_to_be_stored() -> None:
    store = ResponseStore(10_000)
    assert store.add("", response("resp_1", text="a" * 2500), [])
    assert store.add("", response("resp_2", "resp_1", text="a" * 2500), [])
    assert not store.add("", response("resp_3", "resp_2", text="a" * 2500), [])
    with pytest.raises(NotFound):
        store.response("", "resp_3")


def test_a_compacted_conversation_is_read_alone_and_counts_in_full() -> None:
    store, turn = ResponseStore(10**6), response("resp_b", "resp_a")
    store.add("", response("resp_a"), [ITEM])
    before = store.num_bytes
    assert store.add("", turn, [ITEM], [ITEM, {"x": "y" * 1000}])
    assert store.num_bytes > before + 1000 + ENTRY_OVERHEAD_BYTES
    for _ in range(2):
        assert items_of(store, "", "resp_b") == [[ITEM, {"x": "y" * 1000}]]
        assert store.response("", "resp_b") == turn and store.input_items("", "resp_b") == [ITEM]
        if store.output("", "resp_a") is not None:
            store.delete("", "resp_a")
    store.add("", response("resp_c", "resp_b"), [ITEM])
    assert len(store.conversation("", "resp_c")) == 3
    store.delete("", "resp_c")
    store.delete("", "resp_b")
    assert store.num_bytes == len(store) == 0


def test_what_a_compaction_has_replaced_is_dropped_first() -> None:
    size = ResponseStore(10**6)
    size.add("", response("resp_b", "resp_a"), [ITEM], [ITEM])
    store = ResponseStore(3 * size.num_bytes)
    store.add("", response("resp_a"), [ITEM])
    store.add("", response("resp_b", "resp_a"), [ITEM], [ITEM])
    for name, previous in (("resp_c", "resp_b"), ("resp_d", "resp_c")):
        assert store.add("", response(name, previous), [ITEM])
    assert len(store.conversation("", "resp_d")) == 5 and store.output("", "resp_a") is None
