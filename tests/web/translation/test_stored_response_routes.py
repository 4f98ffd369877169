"""StoredResponses: stored responses over HTTP, each tenant's own."""

import json
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, NotFound, Unavailable
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.translation.stored_response_routes import StoredResponses
from support_translation import ready_lifecycle, request

ITEMS = [
    {"type": "message", "role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
]  # fmt: skip
RESPONSE = {"id": "resp_a", "object": "response", "output": []}


@pytest.fixture
def routes() -> StoredResponses:
    store = ResponseStore(10**6)
    store.add("alice", RESPONSE, ITEMS)
    return StoredResponses(store, ready_lifecycle())


def get(handler: Any, query: str = "", tenant: str = "alice", response_id: str = "resp_a") -> Any:
    sent = request(handler, method="GET", query=query, tenant=tenant, path_params={"id": response_id})
    assert sent.status == 200
    return json.loads(sent.body)


def test_a_listed_item_has_an_id_and_a_type(routes: StoredResponses) -> None:
    store = ResponseStore(10**6)
    store.add("alice", RESPONSE, [{"type": None, "id": None, "role": "user", "content": "Hi"}])
    (item,) = get(StoredResponses(store, ready_lifecycle()).input_items)["data"]
    assert item["type"] == "message" and item["id"] == "item_a_0" and item["status"] == "completed"


def test_a_listed_item_has_the_published_form() -> None:
    store = ResponseStore(10**6)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": 1}}
    store.add("alice", RESPONSE, [{"role": "user", "content": ["a", {"type": "text", "text": "b"}]}, call])
    call, message = get(StoredResponses(store, ready_lifecycle()).input_items)["data"]
    assert message["content"] == [{"type": "input_text", "text": text} for text in "ab"]
    assert call["arguments"] == '{"a":1}'


def test_retrieve_and_delete(routes: StoredResponses) -> None:
    assert get(routes.retrieve) == RESPONSE == get(routes.retrieve, "include=x&stream=false")
    with pytest.raises(NotFound):
        get(routes.delete, tenant="bob")
    assert get(routes.delete) == {"id": "resp_a", "object": "response", "deleted": True}
    for handler in (routes.retrieve, routes.delete, routes.input_items, routes.cancel):
        with pytest.raises(NotFound):
            get(handler)


def test_items_are_listed_in_pages(routes: StoredResponses) -> None:
    whole = get(routes.input_items, "order=asc")
    assert [item["type"] for item in whole["data"]] == ["message", "message", "function_call_output"]
    assert whole["data"][0]["content"] == [{"type": "input_text", "text": "Hi"}]
    assert whole["data"][1]["content"] == [{"type": "output_text", "text": "Yes", "annotations": []}]
    assert not whole["has_more"] and whole["first_id"] == whole["data"][0]["id"] != whole["last_id"]
    newest = get(routes.input_items, "limit=2")
    assert newest["data"] == whole["data"][:0:-1] and newest["has_more"]
    rest = get(routes.input_items, f"limit=2&after={newest['last_id']}")
    assert rest["data"] == whole["data"][:1] and not rest["has_more"]
    assert get(routes.input_items, f"after={rest['last_id']}")["data"] == []


@pytest.mark.parametrize(("query", "message"), [
    ("order=up", "order must be asc or desc"), ("limit=0", "limit must be"), ("limit=101", "limit must be"),
    ("limit=9999999999", "limit must be"), ("limit=x", "limit must be"), ("limit=%C2%B2", "limit must be"),
    (f"limit=0001{'1' * 5000}", "limit must be"),
    ("after=x", "after names no item"), ("a=1&" * 101, "the query has more than 100 fields"),
])  # fmt: skip
def test_bad_queries(routes: StoredResponses, query: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        get(routes.input_items, query)


def test_what_is_not_there(routes: StoredResponses) -> None:
    with pytest.raises(InvalidRequest, match="stream must be false"):
        get(routes.retrieve, "stream=true")
    with pytest.raises(InvalidRequest, match="the response is complete"):
        get(routes.cancel)
    with pytest.raises(Unavailable):
        get(StoredResponses(ResponseStore(1), Lifecycle()).retrieve)
