"""AttemptReader: the events of a response in each mode, in any pieces; early ends, reported errors, and bounds."""

from collections.abc import Sequence

import orjson
import pytest

from chairlift.router.attempts.actions import ResponseMode
from chairlift.router.attempts.attempt_reader import AttemptReader, error_event, error_of
from chairlift.router.attempts.chunks import Chunk, ChunkKind
from chairlift.router.attempts.events import (
    AttemptBroken,
    AttemptEvent,
    ChunksReceived,
    FailureReason,
    RequestErrorReported,
    ResponseEnded,
)
from support_attempts import DONE, chunk, chunk_event
from support_shares import for_each

FIRST, SECOND = chunk_event(0, {"content": "a"}, ids=(1,)), chunk_event(0, {"content": "b"}, ids=(2,), position=1)


def read(mode: ResponseMode, data: bytes, size: int) -> list[AttemptEvent]:
    """Return the events of a response that comes in pieces of a size; chunks of several pieces are joined."""
    reader = AttemptReader(4, mode)
    events = [event for i in range(0, len(data), size) for event in reader.push(data[i : i + size])]
    events += reader.close()
    chunks = [each for event in events if isinstance(event, ChunksReceived) for each in event.chunks]
    return [ChunksReceived(4, chunks), *(event for event in events if not isinstance(event, ChunksReceived))]


def named(name: str, data: object) -> bytes:
    return f"event: {name}\n".encode() + b"data: " + orjson.dumps(data) + b"\n\n"


@pytest.mark.parametrize("size", [1, 2, 7, 100, 10_000])
def test_a_token_stream_is_read_in_any_pieces(size: int) -> None:
    data = FIRST + b": a comment\n\n" + SECOND + named("later", {"x": 1}) + DONE + b"ignored"
    chunks = [chunk(0, {"content": "a"}, ids=(1,)), chunk(0, {"content": "b"}, ids=(2,), position=1)]
    assert read(ResponseMode.TOKENS, data, size) == [ChunksReceived(4, chunks), ResponseEnded(4, DONE)]


def test_chunks_that_come_together_stay_together_and_the_end_follows() -> None:
    events = AttemptReader(4, ResponseMode.TOKENS).push(FIRST + SECOND + DONE)
    assert len(events) == 2
    assert isinstance(events[0], ChunksReceived) and len(events[0].chunks) == 2


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_progress_events_are_chunks_without_bytes(size: int) -> None:
    data = (
        named("progress", {"index": 1, "token_ids": [5, 6], "logprobs": {"content": [1, 2]}})
        + named("progress", {"index": 0, "token_ids": [7], "position": 3})
        + named("response", {"choices": []})
    )
    chunks = [
        Chunk(b"", ChunkKind.CHOICE, 1, (5, 6), None, logprobs={"content": [1, 2]}),
        Chunk(b"", ChunkKind.CHOICE, 0, (7,), 3),
    ]
    assert read(ResponseMode.PROGRESS, data, size) == [ChunksReceived(4, chunks), ResponseEnded(4, b'{"choices":[]}')]


@pytest.mark.parametrize("ending", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_opaque_stream_passes_in_whole_events_until_done(ending: bytes) -> None:
    reader = AttemptReader(4, ResponseMode.OPAQUE)
    assert reader.push(b'data: {"a":1}') == []
    assert reader.push(ending + b"data: half") == [ChunksReceived(4, (Chunk(b'data: {"a":1}' + ending),))]
    assert reader.push(ending + b"data: [DONE]" + ending) == [
        ChunksReceived(4, (Chunk(b"data: half" + ending + b"data: [DONE]" + ending),)), ResponseEnded(4)
    ]  # fmt: skip
    assert reader.push(b"data: more\n\n") == []
    assert reader.close() == []


def test_done_inside_a_text_does_not_end_an_opaque_stream() -> None:
    reader = AttemptReader(4, ResponseMode.OPAQUE)
    assert len(reader.push(b'data: {"text":"data: [DONE]"}\n\n')) == 1
    assert reader.close() == [AttemptBroken(4, FailureReason.EOF)]


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n"])
def test_an_opaque_stream_may_close_right_behind_done(end: bytes) -> None:
    reader = AttemptReader(4, ResponseMode.OPAQUE)
    assert reader.push(end) == []
    assert reader.close() == [ChunksReceived(4, (Chunk(DONE),)), ResponseEnded(4)]


def test_a_whole_body_ends_with_its_connection() -> None:
    reader = AttemptReader(4, ResponseMode.WHOLE)
    assert reader.push(b'{"a":') == reader.push(b"1}") == []
    assert reader.close() == [ResponseEnded(4, b'{"a":1}')]
    assert reader.close() == []


@pytest.mark.parametrize("mode", [ResponseMode.TOKENS, ResponseMode.PROGRESS, ResponseMode.OPAQUE, ResponseMode.WHOLE])
def test_a_connection_that_ends_too_early_breaks_the_attempt(mode: ResponseMode) -> None:
    reset = AttemptReader(4, mode)
    reset.push(FIRST)
    assert reset.close(is_reset=True) == [AttemptBroken(4, FailureReason.RESET)]
    if mode is not ResponseMode.WHOLE:
        assert AttemptReader(4, mode).close() == [AttemptBroken(4, FailureReason.EOF)]


@pytest.mark.parametrize(
    "data",
    [
        b"data: {}\n\n",
        b"event: progress\ndata: []\n\n",
        b'event: progress\ndata: {"index":0}\n\n',
        b'event: progress\ndata: {"index":0,"token_ids":[4294967296]}\n\n',
        b'event: progress\ndata: {"index":0,"token_ids":[1.5]}\n\n',
    ],
)
def test_what_makes_no_sense_breaks_the_attempt(data: bytes) -> None:
    mode = ResponseMode.PROGRESS if data.startswith(b"event") else ResponseMode.TOKENS
    assert AttemptReader(4, mode).push(data) == [AttemptBroken(4, FailureReason.BAD_STREAM)]


def test_a_body_larger_than_its_bound_is_an_error_of_the_request() -> None:
    reader = AttemptReader(4, ResponseMode.WHOLE, max_bytes=10)
    assert reader.push(b"0123456789") == []
    (event,) = reader.push(b"0")
    assert isinstance(event, RequestErrorReported)
    assert error_of(event.payload) == ("replica_failed", "the response has more than 10 bytes, the limit of a router")
    assert reader.push(b"5") == reader.close() == []


@pytest.mark.parametrize("mode", [ResponseMode.TOKENS, ResponseMode.PROGRESS, ResponseMode.OPAQUE])
def test_an_event_larger_than_its_bound_breaks_the_attempt(mode: ResponseMode) -> None:
    reader = AttemptReader(4, mode, max_bytes=10)
    assert reader.push(b"data: 1234") == []
    assert reader.push(b"5") == [AttemptBroken(4, FailureReason.BAD_STREAM)]
    assert reader.push(b"5") == reader.close() == []


@for_each(
    ("code", "expected"),
    [
        ("engine_dead", [AttemptBroken(4, FailureReason.ERROR_EVENT)]),
        ("internal_error", [AttemptBroken(4, FailureReason.ERROR_EVENT)]),
        ("draining", [AttemptBroken(4, FailureReason.UNAVAILABLE)]),
        ("overloaded", [AttemptBroken(4, FailureReason.UNAVAILABLE)]),
        ("timeout", None),
        ("non_finite_logits", None),
        (None, None),
    ],
)
def test_an_error_event_says_whether_another_replica_may_do_better(
    code: str | None, expected: Sequence[AttemptEvent] | None
) -> None:
    payload = orjson.dumps({"error": {"code": code, "message": "no"}})
    expected = expected or [RequestErrorReported(4, payload)]
    for mode in (ResponseMode.TOKENS, ResponseMode.PROGRESS):
        assert AttemptReader(4, mode).push(b"event: error\ndata: " + payload + b"\n\n") == expected
    assert [error_event(4, payload)] == expected


def test_an_error_that_calls_itself_retryable_is_no_error_of_the_request() -> None:
    payload = b'{"error":{"code":"of a later version","retryable":true}}'
    assert error_event(4, payload) == AttemptBroken(4, FailureReason.UNAVAILABLE)
    payload = payload.replace(b"true", b"false")
    assert error_event(4, payload) == RequestErrorReported(4, payload)


def test_code_and_message_of_an_error() -> None:
    assert error_of(b'{"error":{"code":"timeout","message":"late"}}') == ("timeout", "late")
    assert error_of(b'{"error":"late"}') == ("error", "the replica reported an error without a message")


def test_a_large_event_in_small_pieces_is_read_in_linear_time() -> None:
    body = b'{"choices":["' + b"x" * 2_000_000 + b'"]}'
    data = b"event: response\ndata: " + body + b"\n\n"
    reader = AttemptReader(4, ResponseMode.PROGRESS)
    events = [event for i in range(0, len(data), 1000) for event in reader.push(data[i : i + 1000])]
    assert events == [ResponseEnded(4, body)]


COMMENTS = (b": waiting\n\n", b": waiting, 2 ahead\n\n")


@pytest.mark.parametrize("size", [1, 4, 10_000])
@pytest.mark.parametrize("mode", [ResponseMode.TOKENS, ResponseMode.PROGRESS, ResponseMode.OPAQUE])
def test_comments_are_no_output(mode: ResponseMode, size: int) -> None:
    reader, data = AttemptReader(4, mode), b"".join(COMMENTS)
    assert [event for i in range(0, len(data), size) for event in reader.push(data[i : i + size])] == []
    assert reader.comment == b"waiting, 2 ahead"
    assert reader.close() == [AttemptBroken(4, FailureReason.EOF)]


@pytest.mark.parametrize("ending", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_opaque_stream_passes_without_the_comments_of_its_server(ending: bytes) -> None:
    reader, line = AttemptReader(4, ResponseMode.OPAQUE), ending[: len(ending) // 2]
    mixed = b": in an event" + line + b'data: {"a":1}' + ending
    data = b":" + ending + mixed + b": PROCESSING" + line + b":more" + ending + b'data: {"b":": 2"}' + ending
    assert reader.push(data) == [ChunksReceived(4, (Chunk(mixed + b'data: {"b":": 2"}' + ending),))]
    assert reader.comment == b"more"
    done = b"data: [DONE]" + ending
    assert reader.push(b": end" + ending + done) == [ChunksReceived(4, (Chunk(done),)), ResponseEnded(4)]


def test_a_long_comment_is_cut() -> None:
    reader = AttemptReader(4, ResponseMode.OPAQUE)
    assert reader.push(b":" + b"x" * 1000 + b"\n\n") == [] and reader.comment == b"x" * 100


@pytest.mark.parametrize("comments", [b"", b"".join(COMMENTS)])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("engine_dead", AttemptBroken(4, FailureReason.ERROR_EVENT)),
        ("draining", AttemptBroken(4, FailureReason.UNAVAILABLE)),
        ("timeout", RequestErrorReported(4, orjson.dumps({"error": {"code": "timeout", "message": "m"}}))),
    ],
)
def test_an_error_before_any_output_of_an_opaque_stream_is_no_output(
    comments: bytes, code: str, expected: AttemptEvent
) -> None:
    event = named("error", {"error": {"code": code, "message": "m"}})
    assert AttemptReader(4, ResponseMode.OPAQUE).push(comments + event) == [expected]
    behind = AttemptReader(4, ResponseMode.OPAQUE)
    behind.push(b"data: {}\n\n")
    assert behind.push(event) == [ChunksReceived(4, (Chunk(event),))]


def test_an_error_that_is_no_object_passes() -> None:
    event = b"event: error\ndata: broken\n\n"
    assert AttemptReader(4, ResponseMode.OPAQUE).push(event) == [ChunksReceived(4, (Chunk(event),))]
