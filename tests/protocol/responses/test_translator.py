"""ResponsesTranslator: whole responses are stored for the tenant that asked, unless it does not want that."""

import orjson
import pytest

from chairlift.core.errors import NotFound
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.translator import ResponsesTranslator
from chairlift.protocol.translation.base import EVENT_STREAM, ClientRequest

COMPLETION = {
    "model": "m", "created": 7, "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    "choices": [{"finish_reason": "stop", "message": {"content": "Yes"}, "logprobs": None}],
}  # fmt: skip


def test_a_response_is_stored() -> None:
    store = ResponseStore(10**6)
    translator = ResponsesTranslator(store)
    first = translator.translate({"model": "m", "input": "Hi"}, ClientRequest("alice"))
    response = first.response(COMPLETION)
    assert store.response("alice", response["id"]) == response and first.stream_type == EVENT_STREAM
    more = {"model": "m", "input": "More", "previous_response_id": response["id"]}
    contents = [message["content"] for message in translator.translate(more, ClientRequest("alice")).body["messages"]]
    assert contents[0] == "Hi" and contents[1][0]["text"] == "Yes" and contents[2] == "More"
    with pytest.raises(NotFound):
        translator.translate(more, ClientRequest("bob"))


def test_a_response_may_stay_out_of_the_store() -> None:
    store = ResponseStore(10**6)
    ResponsesTranslator(store).translate({"model": "m", "input": "Hi", "store": False}, ClientRequest()).response(
        COMPLETION
    )
    assert len(store) == 0


def test_a_response_that_is_larger_than_the_store_says_that_it_is_not_stored() -> None:
    for max_bytes, is_stored in ((10**6, True), (1_100, False)):
        store = ResponseStore(max_bytes)
        translation = ResponsesTranslator(store).translate({"model": "m", "input": "Hi"}, ClientRequest())
        assert translation.response(COMPLETION)["store"] == is_stored == bool(len(store))
        events = translation.stream()
        chunk = {**COMPLETION, "choices": [{"index": 0, "delta": {"content": "Yes"}, "finish_reason": "stop"}]}
        events.chunk(chunk)
        last = orjson.loads(events.end().rpartition(b"data: ")[2])
        assert (last["type"], last["response"]["store"]) == ("response.completed", is_stored)


def test_a_response_that_failed_is_not_stored() -> None:
    store = ResponseStore(10**6)
    events = ResponsesTranslator(store).translate({"model": "m", "input": "Hi"}, ClientRequest()).stream()
    events.chunk({**COMPLETION, "choices": [{"index": 0, "delta": {"content": "Yes"}, "finish_reason": None}]})
    failed = orjson.loads(events.error({"message": "no"}).rpartition(b"data: ")[2])
    assert failed["type"] == "response.failed" and failed["response"]["store"] is False and len(store) == 0
