"""TranslatedResponse: whole responses, streams in whatever pieces, and errors of replicas."""

import asyncio
import json
from typing import Any

import pytest

from chairlift.web.translation.translated_response import TranslatedResponse
from support_translation import Echo, Sent

ERROR = {"message": "inner must be short", "type": "invalid_request_error", "param": "inner", "code": "x"}
EVENTS = (("content-type", "text/event-stream"),)


def respond(
    *pieces: bytes, status: int = 200, headers: Any = (("content-type", "application/json"),), path: str = "/outer",
    ignored: Any = (), ping_interval: float = 0.0,
) -> Sent:  # fmt: skip
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def run() -> None:
        response = TranslatedResponse(send, Echo({}), path, "request-1", ignored, ping_interval=ping_interval)
        pairs = [(name.encode(), value.encode()) for name, value in headers]
        await response.send({"type": "http.response.start", "status": status, "headers": pairs})
        for number, piece in enumerate(pieces):
            more = number < len(pieces) - 1
            await response.send({"type": "http.response.body", "body": piece, "more_body": more})

    asyncio.run(run())
    return Sent(messages, {})


def test_a_whole_response_in_pieces() -> None:
    sent = respond(b'{"a"', b": 1}", headers=[("content-type", "application/json"), ("content-length", "8")])
    assert json.loads(sent.body) == {"translated": {"a": 1}}
    assert sent.headers["content-length"] == str(len(sent.body)) and len(sent.pieces) == 1


def test_a_large_response_is_translated_in_another_thread() -> None:
    assert len(json.loads(respond(json.dumps({"a": "b" * 300_000}).encode()).body)["translated"]["a"]) == 300_000


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_translated_as_it_comes(size: int) -> None:
    stream = b'data: {"a": "b"}\n\n: comment\n\ndata: {"c": 1}\n\ndata: [DONE]\n\n'
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    sent = respond(*pieces, headers=[*EVENTS, ("cache-control", "no-cache")])
    assert [line for line in sent.body.splitlines() if b"ALIVE" not in line] == [b'{"A": "B"}', b'{"C": 1}', b"END"]
    assert sent.headers == {"content-type": "application/x-ndjson", "cache-control": "no-cache"}
    assert all(sent.pieces[:-1])  # nothing empty is sent but the end


def test_a_comment_of_the_inner_route_becomes_what_the_api_has() -> None:
    pieces = b": waiting\n\n", b'data: {"a": 1}\n\n', b": generating\n\n", b"data: [DONE]\n\n"
    sent = respond(*pieces, headers=EVENTS)
    assert sent.pieces == [b"ALIVE : waiting\n", b'{"A": 1}\n', b"ALIVE : generating\n", b"END\n"]


@pytest.mark.parametrize(("ping_interval", "expected"), [(1e-9, b"ALIVE : generating\n"), (1000.0, b""), (0.0, b"")])
def test_events_that_give_nothing_to_send_for_long_are_a_silence(ping_interval: float, expected: bytes) -> None:
    """As those of a tool call that Ollama's API has only at its end."""
    sent = respond(b"data: {}\n\n", b"", headers=EVENTS, ping_interval=ping_interval)
    assert sent.body == expected


def test_an_error_in_a_stream() -> None:
    body = json.dumps({"error": ERROR}).encode()
    assert respond(b"event: error\ndata: " + body + b"\n\n", headers=EVENTS).body == b"ERROR say must be short\n"
    assert respond(b"data: " + body + b"\n\n", headers=EVENTS).body == b"ERROR say must be short\n"


def test_a_stream_that_is_cut_off_has_no_end() -> None:
    assert respond(b'data: {"a": 1}\n\ndata: {"b"', b"", headers=EVENTS).body == b'{"A": 1}\n'


def test_an_error_of_a_replica_gets_the_form_of_the_api() -> None:
    body = json.dumps({"error": ERROR}).encode()
    error = json.loads(respond(body, status=400).body)["error"]
    assert (error["message"], error["param"]) == ("say must be short", "say")
    anthropic = json.loads(respond(body, status=429, path="/v1/messages").body)
    assert anthropic == {
        "type": "error", "error": {"type": "rate_limit_error", "message": "say must be short"},
        "request_id": "request-1",
    }  # fmt: skip


@pytest.mark.parametrize("body", [b"Bad Gateway", b"[]", b'{"error": "text"}', b'{"error": {"message": 7}}'])
def test_an_error_of_another_server_stays_as_it_is(body: bytes) -> None:
    assert respond(body, status=502).body == body


def test_fields_without_effect_are_named_together() -> None:
    headers = [("content-type", "application/json"), ("x-ignored-parameters", "b, c")]
    sent = respond(b"{}", headers=headers, ignored=[(b"x-ignored-parameters", b"a")])
    assert sent.headers["x-ignored-parameters"] == "a, b, c"
    assert respond(b"{}", headers=headers).headers["x-ignored-parameters"] == "b, c"
    renamed = respond(b"{}", headers=[*headers[:1], ("x-ignored-parameters", "c, inner, inner.x")])
    assert renamed.headers["x-ignored-parameters"] == "c, say, say.x"


def test_an_interim_response_passes() -> None:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(TranslatedResponse(send, Echo({}), "/outer", "r").send({"type": "http.response.debug"}))
    assert messages == [{"type": "http.response.debug"}]
