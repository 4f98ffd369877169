"""ResponsesTranslator: whole responses are stored for the tenant that asked, unless it does not want that."""

import pytest

from chairlift.core.errors import NotFound
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.translator import ResponsesTranslator
from chairlift.protocol.translation.base import EVENT_STREAM, Client

COMPLETION = {
    "model": "m", "created": 7, "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    "choices": [{"finish_reason": "stop", "message": {"content": "Yes"}, "logprobs": None}],
}  # fmt: skip


def test_a_response_is_stored() -> None:
    store = ResponseStore(10**6)
    translator = ResponsesTranslator(store)
    first = translator.translate({"model": "m", "input": "Hi"}, Client("alice"))
    response = first.response(COMPLETION)
    assert store.response("alice", response["id"]) == response and first.stream_type == EVENT_STREAM
    more = {"model": "m", "input": "More", "previous_response_id": response["id"]}
    contents = [message["content"] for message in translator.translate(more, Client("alice")).body["messages"]]
    assert contents[0] == "Hi" and contents[1][0]["text"] == "Yes" and contents[2] == "More"
    with pytest.raises(NotFound):
        translator.translate(more, Client("bob"))


def test_a_response_may_stay_out_of_the_store() -> None:
    store = ResponseStore(10**6)
    ResponsesTranslator(store).translate({"model": "m", "input": "Hi", "store": False}, Client()).response(COMPLETION)
    assert len(store) == 0
