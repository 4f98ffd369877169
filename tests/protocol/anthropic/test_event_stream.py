"""MessageEvents: the order and the fields of events, however a stream's deltas come together."""

import json
from typing import Any

from anthropic.types import RawMessageStreamEvent

from chairlift.protocol.anthropic.event_stream import MessageEvents
from chairlift.protocol.anthropic.message_writer import SIGNATURE
from chairlift.protocol.anthropic.translator import MessagesTranslator
from chairlift.protocol.sse import EventReader
from chairlift.protocol.translation.base import ClientRequest
from support_sdk_schemas import checked

USAGE = {"prompt_tokens": 30, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 16}}
BODY = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], "stop_sequences": ["END"]}


def begin() -> MessageEvents:
    return MessagesTranslator().translate({**BODY, "stream": True}, ClientRequest()).stream()


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "c", "model": "m", "created": 7, "choices": [choice], "usage": None}


def call(index: int, arguments: str = "", name: str = "") -> dict[str, Any]:
    head = {"id": f"call_{index}", "type": "function"} if name else {}
    return {"index": index, **head, "function": {"arguments": arguments, **({"name": name} if name else {})}}


def sent(*chunks: dict[str, Any]) -> list[dict[str, Any]]:
    stream = begin()
    body = b"".join(stream.chunk(each) for each in chunks)
    body += stream.chunk({"id": "c", "model": "m", "created": 7, "choices": [], "usage": USAGE}) + stream.end()
    return events_of(body)


def events_of(body: bytes) -> list[dict[str, Any]]:
    events = [(event.event, json.loads(event.data)) for event in EventReader().push(body)]
    for name, event in events:
        assert name == event["type"]
        if name not in ("ping", "error"):  # which the published type of events lacks
            checked(RawMessageStreamEvent, event)
    return [event for _, event in events]


def shape(events: list[dict[str, Any]]) -> list[Any]:
    """Return what the events between those of the message itself say, in short."""
    short = []
    for event in events[2:-2]:
        kind = event["type"].removeprefix("content_block_")
        short.append((event["index"], kind, event.get("content_block", event.get("delta", {})).get("type")))
    return short


def test_thinking_text_and_calls_are_blocks_in_order() -> None:
    events = sent(
        chunk(role="assistant", content=""), chunk(reasoning_content="Hm"), chunk(reasoning_content="."),
        chunk(content="Yes"), chunk(tool_calls=[call(0, name="f")]), chunk(tool_calls=[call(0, "{}")]),
        chunk(tool_calls=[call(1, '{"a"', "g")]), chunk("tool_calls", tool_calls=[call(1, ": 1}")]),
    )  # fmt: skip
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert shape(events) == [
        (0, "start", "thinking"), (0, "delta", "thinking_delta"), (0, "delta", "thinking_delta"),
        (0, "delta", "signature_delta"), (0, "stop", None),
        (1, "start", "text"), (1, "delta", "text_delta"), (1, "stop", None),
        (2, "start", "tool_use"), (2, "delta", "input_json_delta"), (2, "stop", None),
        (3, "start", "tool_use"), (3, "delta", "input_json_delta"), (3, "delta", "input_json_delta"), (3, "stop", None),
    ]  # fmt: skip
    assert events[5]["delta"] == {"type": "signature_delta", "signature": SIGNATURE}
    start = events[0]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["input_tokens"] == 0
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"] == {
        "input_tokens": 14, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 16, "output_tokens": 8,
    }  # fmt: skip


def test_one_chunk_may_have_everything() -> None:
    calls = [call(0, "{}", "f"), call(1, "{}", "g")]
    events = sent(chunk("tool_calls", role="assistant", reasoning_content="Hm", content="Yes", tool_calls=calls))
    blocks = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert blocks == ["thinking", "text", "tool_use", "tool_use"]


def test_a_text_behind_a_call_is_a_block_of_its_own() -> None:
    events = sent(chunk(tool_calls=[call(0, "{}", "f")]), chunk(content="a"), chunk("stop", content="b"))
    assert [entry[:2] for entry in shape(events)] == [
        (0, "start"), (0, "delta"), (0, "stop"), (1, "start"), (1, "delta"), (1, "delta"), (1, "stop"),
    ]  # fmt: skip


def test_an_empty_answer_has_no_block() -> None:
    events = sent(chunk(role="assistant", content=""), chunk("length"))
    assert shape(events) == [] and events[-2]["delta"]["stop_reason"] == "max_tokens"


def test_the_stop_sequence() -> None:
    last = chunk("stop")
    last["choices"][0]["stop_reason"] = "END"
    assert sent(chunk(content="a"), last)[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


def test_an_error_ends_the_stream() -> None:
    stream = begin()
    body = stream.chunk(chunk(content="a"))
    error = {"message": "the engine stopped", "type": "server_error", "code": "engine_dead"}
    *_, last = events_of(body + stream.error(error))
    assert last == {"type": "error", "error": {"type": "overloaded_error", "message": "the engine stopped"}}
    assert [event["type"] for event in events_of(begin().error(error))] == ["error"]


def test_the_ids_of_two_messages_differ() -> None:
    first, second = (sent(chunk("stop", content="a"))[0]["message"]["id"] for _ in range(2))
    assert first.startswith("msg_") and first != second


def test_a_silent_stream_has_pings_anywhere() -> None:
    stream = begin()
    early = stream.keep_alive(b": waiting\n\n")
    body = early + stream.chunk(chunk(content="a")) + stream.keep_alive(b": generating\n\n")
    body += stream.chunk(chunk(content="b")) + stream.chunk(chunk("stop"))
    events = events_of(body + stream.end())
    assert early == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert [event["type"].removeprefix("content_block_") for event in events] == [
        "ping", "message_start", "ping", "start", "delta", "ping", "delta", "stop", "message_delta", "message_stop"
    ]  # fmt: skip


def test_an_error_of_a_stream_without_a_message_follows_the_pings() -> None:
    stream = begin()
    body = stream.keep_alive(b": waiting\n\n") + stream.error({"message": "no", "code": "timeout", "type": "x"})
    assert [event["type"] for event in events_of(body)] == ["ping", "error"]
