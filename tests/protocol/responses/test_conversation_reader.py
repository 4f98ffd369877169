"""ConversationReader: conversations and references of one request, within a bound of bytes."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, NotFound
from chairlift.protocol.responses import response_store
from chairlift.protocol.responses.conversation_reader import ConversationReader, uses_stored_items
from chairlift.protocol.responses.response_store import ResponseStore

ITEM = {"type": "message", "role": "user", "content": "Hi"}
OUTPUT = [{"id": "rs_a_0", "type": "reasoning"}, {"id": "msg_a_1", "type": "message", "text": "y" * 1000}]


def stored(max_read_bytes: int = 10_000, tenant: str = "alice") -> ConversationReader:
    store = ResponseStore(10**6, max_read_bytes)
    store.add("alice", {"id": "resp_a", "output": OUTPUT}, [ITEM])
    store.add("alice", {"id": "resp_b", "output": [], "previous_response_id": "resp_a"}, [ITEM])
    return ConversationReader(store, tenant)


def reference(item_id: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": item_id}


def test_a_conversation_is_one_list_of_items() -> None:
    assert stored().conversation("resp_b") == [ITEM, *OUTPUT, ITEM]
    with pytest.raises(NotFound):
        stored(tenant="bob").conversation("resp_b")


def test_references_are_replaced_by_what_they_name() -> None:
    assert stored().resolve([ITEM, reference("msg_a_1"), 7], "input") == [ITEM, OUTPUT[1], 7]
    for items, tenant in (([ITEM, reference("msg_a_2")], "alice"), ([ITEM, reference("msg_a_1")], "bob")):
        with pytest.raises(InvalidRequest, match=r"input\[1\]\.id names no stored item: 'msg_a_"):
            stored(tenant=tenant).resolve(items, "input")
    with pytest.raises(InvalidRequest, match=r"input\[0\]\.id must be a string, got NoneType"):
        stored().resolve([reference(None)], "input")


def test_what_a_request_reads_is_bounded_with_its_repetitions() -> None:
    assert len(stored().resolve([reference("msg_a_1")] * 9, "input")) == 9
    with pytest.raises(InvalidRequest, match=r"input\[9\]\.id names stored items of 104\d\d bytes together.* is 10000"):
        stored().resolve([reference("msg_a_1")] * 100_000, "input")
    with pytest.raises(InvalidRequest, match=r"previous_response_id names stored items of .* the limit is 1000"):
        stored(1000).conversation("resp_b")
    both = stored(2000)
    both.conversation("resp_a")
    with pytest.raises(InvalidRequest, match="the limit is 2000"):
        both.resolve([reference("msg_a_1")], "input")


def test_a_conversation_of_too_many_responses_is_rejected_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "MAX_CHAIN", 100)
    store = ResponseStore(10**8)
    for number in range(101):
        store.add("", {"id": f"r{number}", "output": [], "previous_response_id": f"r{number - 1}" * (number > 0)}, [])
    assert ConversationReader(store, "").conversation("r99") == []
    with pytest.raises(InvalidRequest, match="previous_response_id goes on with more than 100 responses"):
        ConversationReader(store, "").conversation("r100")


def test_bodies_that_use_the_store() -> None:
    assert uses_stored_items(b'{"previous_response_id": "x"}') and uses_stored_items(b'[{"type": "item_reference"}]')
    assert not uses_stored_items(b'{"input": "Hi"}')
