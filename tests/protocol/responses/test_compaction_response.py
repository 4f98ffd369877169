"""CompactionResponse: a request that ends with a trigger gets one compaction item, whole and streamed."""

import json
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, NotFound
from chairlift.protocol.responses import response_store
from chairlift.protocol.responses.compaction import CompactionTranslator
from chairlift.protocol.responses.compaction_item import summary_of
from chairlift.protocol.responses.compaction_response import CompactionResponse
from chairlift.protocol.responses.input_items import SUMMARY_INTRODUCTION
from chairlift.protocol.responses.input_tokens import InputTokensTranslator
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.responses_request_fields import LOGPROBS
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
    translation = translate(stream=True, seed=1, metadata={"a": "b"}, tools=[], tool_choice=None)
    assert isinstance(translation, CompactionResponse) and not translation.ignored
    assert [each["content"] for each in translation.body["messages"]] == ["Read a.txt", "alpha", "Go", SUMMARY_REQUEST]
    assert "tools" not in translation.body and translation.body["stream"] is True
    assert not isinstance(translate(input=[TRIGGER, *CONVERSATION]), CompactionResponse)
    assert translate(input=[TRIGGER, *CONVERSATION]).ignored == ("input.compaction_trigger",)


def test_fields_without_effect_on_a_summary_are_named() -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "web_search"}]
    body: dict[str, Any] = {
        "tools": tools, "tool_choice": "required", "parallel_tool_calls": True, "stop": ["x"], "regex": "a",
        "text": {"format": {"type": "json_object"}, "verbosity": "low"}, "include": [LOGPROBS], "top_logprobs": 2,
        "logit_bias": {"1": 1}, "service_tier": "auto", "unknown": 1, "reasoning": {"effort": "low", "summary": "auto"},
    }  # fmt: skip
    translation = translate(**body)
    assert sorted(translation.ignored) == sorted(
        [*body.keys() - {"reasoning"}, "reasoning.summary", "tools.web_search"]
    )
    assert translation.body.keys() == {"model", "messages", "reasoning_effort"}
    response = translation.response(completion("S"))
    assert response["text"] == {"format": {"type": "text"}} and response["tool_choice"] == "auto"
    namespace = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}
    assert translate(tools=[namespace]).ignored == (), "it has the names of calls"


@for_each("body", [{"input": [TRIGGER]}, {"input": [TRIGGER], "instructions": "Be brief."}])
def test_a_trigger_alone_has_nothing_to_summarize(body: dict[str, Any]) -> None:
    for translator in (ResponsesTranslator, CompactionTranslator, InputTokensTranslator):
        with pytest.raises(InvalidRequest, match="input has nothing to summarize"):
            translator(ResponseStore(0)).translate({"model": "m", **body}, ClientRequest())


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


def test_the_tokens_of_reasoning_are_the_same_in_a_stream() -> None:
    whole = completion(" S1 S2")
    whole["choices"][0]["message"]["reasoning_content"] = "thoughts"
    usage = translate().response(whole)["usage"]
    first, *rest = chunks(" S1", " S2")
    first["choices"][0]["delta"]["reasoning_content"] = "thoughts"
    events = events_of(translate(stream=True), [first, *rest])
    assert events[-1]["response"]["usage"] == usage
    assert usage["output_tokens_details"] == {"reasoning_tokens": 6}  # of 10 tokens, by 8 of 14 characters


def test_the_result_of_a_call_may_follow_a_trigger() -> None:
    store = ResponseStore(10**6)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "x"}
    store.add("", {"id": "resp_a", "output": [call]}, [CONVERSATION[0]])
    compaction = translate(store, previous_response_id="resp_a", input=[TRIGGER]).response(completion("S"))
    following = translate(store, previous_response_id=compaction["id"], input=[result])
    roles = ["user", "user", "assistant", "tool"]
    assert [message["role"] for message in following.body["messages"]] == roles
    # The client's own compaction item stands for the result, too, which a stored call has.
    settled = translate(store, previous_response_id="resp_a", input=[result, *compaction["output"], CONVERSATION[2]])
    assert [message["role"] for message in settled.body["messages"]] == ["user", "user", "user"]
    pending = translate(store, previous_response_id="resp_a", input=[*compaction["output"], result])
    assert [message["role"] for message in pending.body["messages"]] == roles


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


def contents_of(translation: Any) -> list[Any]:
    return [each["content"] for each in translation.body["messages"]]


def test_a_stored_conversation_goes_on_with_the_summary() -> None:
    store = ResponseStore(10**6)
    first = translate(store).response(completion("S"))
    following = translate(store, previous_response_id=first["id"], input="More")
    assert contents_of(following) == ["Read a.txt", "Go", SUMMARY_INTRODUCTION + "S", "More"]
    events = events_of(translate(store, previous_response_id=first["id"], input=[TRIGGER], stream=True), chunks("T"))
    again = translate(store, previous_response_id=events[-1]["response"]["id"], input="More")
    assert contents_of(again) == ["Read a.txt", "Go", SUMMARY_INTRODUCTION + "T", "More"]


def test_behind_a_compaction_nothing_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "MAX_CHAIN", 4)
    store, previous, ids = ResponseStore(10**6, max_read_bytes=3500), None, []
    for number in range(22):
        is_compaction = number % 4 == 3
        translation = translate(
            store, previous_response_id=previous, input=[TRIGGER] if is_compaction else f"Q{number}"
        )
        ids.append(previous := translation.response(completion(f"S{number}" if is_compaction else "A" * 500))["id"])
    questions = [f"Q{number}" for number in range(20) if number % 4 != 3]
    expected = [*questions, SUMMARY_INTRODUCTION + "S19", "Q20"]
    for response_id in ids[:19]:
        store.delete("", response_id)
    found = contents_of(translate(store, previous_response_id=previous, input="Last"))
    assert [each for each in found if isinstance(each, str)] == [*expected, "Q21", "Last"] and len(found) == 21
    assert contents_of(translate(store, previous_response_id=ids[19], input="Last")) == [*expected[:-1], "Last"]
    with pytest.raises(NotFound):
        translate(store, previous_response_id=ids[18], input="Last")


def test_what_is_stored_of_a_compaction_is_what_was_sent() -> None:
    store = ResponseStore(10**6)
    first = translate(store, input="Hi").response(completion("A"))
    compaction = translate(store, previous_response_id=first["id"]).response(completion("S"))
    kept = store.response("", compaction["id"])
    assert kept == compaction and kept["previous_response_id"] == first["id"] and kept["store"] is True
    assert store.input_items("", compaction["id"]) == CONVERSATION
    (item,) = compaction["output"]
    assert json.loads(store.output("", compaction["id"]) or b"") == [item]
    referring = translate(store, input=[{"type": "item_reference", "id": item["id"]}])
    assert contents_of(referring) == [SUMMARY_INTRODUCTION + "S"]
