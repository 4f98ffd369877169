"""CompactionResponse: a request that ends with a trigger gets one compaction item, whole and streamed."""

import json
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.responses.compaction_item import summary_of
from chairlift.protocol.responses.compaction_response import CompactionResponse
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.summary_request import SUMMARY_REQUEST
from chairlift.protocol.responses.translator import ResponsesTranslator
from chairlift.protocol.translation.base import ClientRequest
from support_shares import for_each

TRIGGER = {"type": "compaction_trigger"}
CONVERSATION: list[Any] = [
    {"role": "user", "content": "Read a.txt"}, {"role": "assistant", "content": "alpha"},
    {"role": "user", "content": "Go"},
]  # fmt: skip


def translate(store: ResponseStore | None = None, **body: Any) -> Any:
    body = {"model": "m", "input": [*CONVERSATION, TRIGGER], **body}
    return ResponsesTranslator(ResponseStore(0) if store is None else store).translate(body, ClientRequest())


def completion(content: str, reason: str = "stop") -> dict[str, Any]:
    usage = {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50}
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": reason}
    return {"model": "m", "created": 5, "choices": [choice], "usage": usage}


def chunks(*pieces: str, reason: str = "stop") -> list[dict[str, Any]]:
    made = [{"delta": {"content": piece}, "finish_reason": None} for piece in pieces]
    made.append({"delta": {}, "finish_reason": reason})
    usage = {"prompt_tokens": 40, "completion_tokens": 10}
    return [*({"model": "m", "choices": [choice]} for choice in made), {"model": "m", "choices": [], "usage": usage}]


def events_of(translation: Any, sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    stream = translation.stream()
    content = b"".join([*(stream.chunk(each) for each in sent), stream.end()])
    return [json.loads(line[6:]) for line in content.splitlines() if line.startswith(b"data: ")]


def test_the_model_is_asked_for_a_summary() -> None:
    translation = translate(tools=[{"type": "function", "name": "f"}], tool_choice="required", stream=True)
    assert isinstance(translation, CompactionResponse) and not translation.ignored
    assert [each["content"] for each in translation.body["messages"]] == ["Read a.txt", "alpha", "Go", SUMMARY_REQUEST]
    assert "tools" not in translation.body and translation.body["stream"] is True
    assert not isinstance(translate(input=[TRIGGER, *CONVERSATION]), CompactionResponse)
    assert translate(input=[TRIGGER, *CONVERSATION]).ignored == ("input.compaction_trigger",)


def test_the_response_has_one_item() -> None:
    response = translate().response(completion(" S "))
    (item,) = response["output"]
    assert response["status"] == "completed" and response["object"] == "response" and summary_of(item) == "S"
    assert response["usage"]["output_tokens"] == 10


def test_the_stream_has_one_item() -> None:
    events = events_of(translate(stream=True), chunks("S1 ", "S2"))
    assert [each["type"] for each in events] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip
    assert [each["sequence_number"] for each in events] == [0, 1, 2, 3, 4]
    assert summary_of(events[3]["item"]) == "S1 S2" and events[-1]["response"]["output"] == [events[3]["item"]]
    assert events[-1]["response"]["usage"]["input_tokens"] == 40


@for_each(("content", "reason", "param"), [("", "stop", "input"), ("Half", "length", "input")])
def test_without_a_whole_summary_it_fails(content: str, reason: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        translate().response(completion(content, reason))
    assert caught.value.details["param"] == param
    *_, error, failed = events_of(translate(stream=True), chunks(content, reason=reason))
    assert (error["type"], error["param"], failed["type"]) == ("error", param, "response.failed")


def test_errors_and_silence_of_the_stream_are_those_of_a_response() -> None:
    stream = translate(stream=True).stream()
    assert b"response.created" in stream.keep_alive(b": waiting\n\n")
    assert b"response.in_progress" in stream.keep_alive(b": waiting\n\n")
    assert b"response.failed" in stream.error({"message": "gone", "type": "server_error"})


def test_a_stored_conversation_goes_on_with_the_summary() -> None:
    store = ResponseStore(10**6)
    first = translate(store).response(completion("S"))
    following = translate(store, previous_response_id=first["id"], input="More")
    contents = [each["content"] for each in following.body["messages"]]
    assert contents[:2] == ["Read a.txt", "Go"] and contents[2].endswith("S") and contents[3:] == ["More"]
