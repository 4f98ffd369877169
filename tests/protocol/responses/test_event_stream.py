"""ResponseEvents: the order and the fields of events, however a stream's deltas come together."""

import json
from typing import Any

from openai.types.responses import ResponseStreamEvent

from chairlift.protocol.responses.event_stream import ResponseEvents
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.translator import ResponsesTranslator
from chairlift.protocol.sse import EventReader
from chairlift.protocol.translation.base import ClientRequest
from support_sdk_schemas import checked

USAGE = {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 2}}
TEXT_EVENTS = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
               "output_item.done"]  # fmt: skip
REASONING_EVENTS = [name.replace("output_text", "reasoning_text") for name in TEXT_EVENTS]
CALL_EVENTS = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


def begin(store: ResponseStore | None = None) -> ResponseEvents:
    translator = ResponsesTranslator(ResponseStore(10**6) if store is None else store)
    return translator.translate({"model": "m", "input": "Hi", "stream": True}, ClientRequest()).stream()


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "c", "model": "m", "created": 7, "choices": [choice], "usage": None}


def call(index: int, arguments: str = "", name: str = "") -> dict[str, Any]:
    head = {"id": f"call_{index}", "type": "function"} if name else {}
    return {"index": index, **head, "function": {"arguments": arguments, **({"name": name} if name else {})}}


def sent(stream: ResponseEvents, *chunks: dict[str, Any], ends: bool = True) -> list[dict[str, Any]]:
    body = b"".join(stream.chunk(each) for each in chunks)
    if ends:
        body += stream.chunk({"id": "c", "model": "m", "created": 7, "choices": [], "usage": USAGE}) + stream.end()
    return events_of(body)


def events_of(body: bytes) -> list[dict[str, Any]]:
    events = [(event.event, json.loads(event.data)) for event in EventReader().push(body)]
    for name, event in events:
        assert name == event["type"]
        checked(ResponseStreamEvent, event, frozenset({"store", "name", "bytes"}))
    return [event for _, event in events]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_reasoning_text_and_calls_are_items_in_order() -> None:
    events = sent(
        begin(), chunk(role="assistant", content=""), chunk(reasoning_content="Hm."), chunk(content="Yes"),
        chunk(tool_calls=[call(0, name="f")]), chunk(tool_calls=[call(0, "{}")]),
        chunk(tool_calls=[call(1, "[", "g")]), chunk("tool_calls", tool_calls=[call(1, "]")]),
    )  # fmt: skip
    second = ["output_item.added", *["function_call_arguments.delta"] * 2, *CALL_EVENTS[2:]]
    assert kinds(events) == [
        "created",
        "in_progress",
        *REASONING_EVENTS,
        *TEXT_EVENTS,
        *CALL_EVENTS,
        *second,
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["call_id"] for item in output[2:]] == ["call_0", "call_1"] and output[3]["arguments"] == "[]"
    assert events[-1]["response"]["usage"] == {
        "input_tokens": 3, "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 8, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 11,
    }  # fmt: skip


def test_a_call_of_a_custom_tool_has_events_of_its_own() -> None:
    head = {"index": 0, "id": "call_0", "type": "custom", "custom": {"name": "apply_patch", "input": ""}}
    rest = [{"index": 0, "custom": {"input": text}} for text in ("*** ", "End")]
    events = sent(begin(), chunk(tool_calls=[head]), *(chunk(tool_calls=[each]) for each in rest))
    assert kinds(events)[2:-1] == [
        "output_item.added", *["custom_tool_call_input.delta"] * 2, "custom_tool_call_input.done", "output_item.done",
    ]  # fmt: skip
    added, *deltas, done, _ = events[2:-1]
    assert added["item"]["input"] == "" and done["input"] == "".join(each["delta"] for each in deltas) == "*** End"
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], item["input"], item["call_id"]) == ("custom_tool_call", "*** End", "call_0")


def test_a_merged_delta_is_taken_apart() -> None:
    merged = chunk(
        "tool_calls", reasoning_content="Hm.", content="Yes", tool_calls=[call(0, "{}", "f"), call(1, "", "g")]
    )
    events = sent(begin(), merged)
    no_arguments = [name for name in CALL_EVENTS if not name.endswith("delta")]
    assert kinds(events) == [
        "created",
        "in_progress",
        *REASONING_EVENTS,
        *TEXT_EVENTS,
        *CALL_EVENTS,
        *no_arguments,
        "completed",
    ]


def test_text_behind_a_call_is_a_new_message() -> None:
    events = sent(begin(), chunk(content="a"), chunk(tool_calls=[call(0, "{}", "f")]), chunk("stop", content="b"))
    items = events[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["message", "function_call", "message"]
    assert len({item["id"] for item in items}) == 3


def test_the_stored_response_is_the_sent_one() -> None:
    store = ResponseStore(10**6)
    last = sent(begin(store), chunk("stop", content="Yes"))[-1]["response"]
    assert store.response("", last["id"]) == last


def test_nothing_is_an_empty_message() -> None:
    events = sent(begin(), chunk("stop"))
    assert kinds(events) == [
        "created",
        "in_progress",
        *[name for name in TEXT_EVENTS if not name.endswith("delta")],
        "completed",
    ]


def test_a_cut_off_item_is_incomplete() -> None:
    last = sent(begin(), chunk(content="a"), chunk("length", content="b"))[-1]
    assert last["type"] == "response.incomplete" and last["response"]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_an_error_ends_the_stream_as_failed_and_stores_nothing() -> None:
    store = ResponseStore(10**6)
    stream = begin(store)
    events = sent(stream, chunk(content="a"), ends=False)
    error = {"message": "the engine stopped", "type": "server_error", "param": None, "code": "engine_dead"}
    events += events_of(stream.error(error))
    assert kinds(events)[-5:] == ["error", "output_text.done", "content_part.done", "output_item.done", "failed"]
    assert events[-1]["type"] == "response.failed" and events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "the engine stopped"}
    assert len(store) == 0
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "a"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_an_error_before_the_first_chunk_is_an_event_error() -> None:
    (event,) = events_of(begin().error({"message": "no", "type": "rate_limit_error", "param": None, "code": "x"}))
    assert event == {"type": "error", "sequence_number": 0, "code": "x", "message": "no", "param": None}


def test_a_merged_delta_with_the_end_of_a_call_and_text_behind_it() -> None:
    events = sent(
        begin(), chunk(tool_calls=[call(0, "{", "f")]),
        chunk("tool_calls", content="and", tool_calls=[call(0, "}"), call(1, "[]", "g")]),
    )  # fmt: skip
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["function_call", "message", "function_call"]
    assert [item["arguments"] for item in output[::2]] == ["{}", "[]"]


def with_logprobs(token: str, given: dict[str, Any]) -> dict[str, Any]:
    entry = {"token": token, "bytes": list(token.encode()), "logprob": -1.0, "top_logprobs": []}
    given["choices"][0]["logprobs"] = {"content": [entry], "refusal": None}
    return given


def test_logprobs_of_tokens_without_text_come_with_the_next_text() -> None:
    events = sent(
        begin(), with_logprobs("<think>", chunk()), with_logprobs("Hm", chunk(reasoning_content="Hm")),
        with_logprobs("</think>", chunk()), with_logprobs("a", chunk(content="a")), with_logprobs("b1", chunk()),
        with_logprobs("b2", chunk(content="b")), with_logprobs("<end>", chunk("stop")),
    )  # fmt: skip
    part = events[-1]["response"]["output"][1]["content"][0]
    assert [each["token"] for each in part["logprobs"]] == ["a", "b1", "b2"]
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for logprobs in deltas for entry in logprobs] == part["logprobs"]


def test_what_a_filter_ended_is_incomplete() -> None:
    last = sent(begin(), chunk("content_filter", content="a"))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "content_filter"}


def test_a_stream_that_is_silent_before_its_output_begins_and_has_progress_events() -> None:
    stream = begin()
    early = b"".join(stream.keep_alive(b": waiting\n\n") for _ in range(3))
    first = stream.chunk(chunk(role="assistant", content=""))
    assert first == b"", "the response has begun"
    events = events_of(early) + sent(stream, chunk(content="a"), chunk("stop"))
    assert kinds(events)[:5] == ["created", *["in_progress"] * 3, "output_item.added"]
    assert kinds(events)[-1] == "completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    responses = [event["response"] for event in events if "response" in event]
    assert {(each["id"], each["model"], each["created_at"]) for each in responses} == {
        (responses[0]["id"], "m", responses[0]["created_at"])
    }


def test_a_silence_behind_output_has_comments() -> None:
    stream = begin()
    before = stream.chunk(chunk(content="a"))
    assert stream.keep_alive(b": generating\n\n") == b": generating\n\n"
    assert kinds(events_of(before) + sent(stream, chunk("stop")))[-1] == "completed"


def test_a_stream_whose_model_is_not_known_yet_has_comments() -> None:
    writer = begin()._begin
    stream = ResponseEvents(writer, lambda response: None)
    assert stream.keep_alive(b": waiting\n\n") == b": waiting\n\n"
    assert kinds(events_of(stream.chunk(chunk(content=""))))[:2] == ["created", "in_progress"]


def test_an_error_of_a_stream_that_has_begun_in_silence_fails_its_response() -> None:
    stream = begin()
    body = stream.keep_alive(b": waiting\n\n") + stream.error({"message": "no", "code": "timeout", "param": None})
    assert kinds(events_of(body)) == ["created", "in_progress", "error", "failed"]
