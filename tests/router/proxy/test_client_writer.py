"""ClientWriter: one head and the pieces of a response as ASGI messages, and the length of an empty one."""

import asyncio
from typing import Any

import pytest

from chairlift.router.proxy.client_writer import ClientWriter
from chairlift.web.body import Message
from chairlift.web.stream_keep_alive import StreamKeepAlive
from support_server import run

OWN, REPLICAS = [(b"x-own", b"1")], [(b"content-type", b"text/event-stream"), (b"x-theirs", b"2")]


def sent(
    *calls: tuple[Any, ...], headers: Any = OWN, more: Any = (), **options: bool
) -> tuple[list[Message], ClientWriter]:
    """Return what a writer sends for calls of its methods, which are given by name."""
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def scenario() -> ClientWriter:
        writer = ClientWriter(send, headers, **options)
        assert not writer.has_started
        if more:
            writer.add_headers(more)
        for name, *arguments in calls:
            await getattr(writer, name)(*arguments)
        return writer

    writer: ClientWriter = run(scenario())
    return messages, writer


def body(payload: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": payload, "more_body": more}


def test_a_stream_has_one_head_without_length() -> None:
    messages, writer = sent(
        ("write", b"a", 200, REPLICAS), ("write", b"b", 500, []), ("end", b"c", 500, []), more=[(b"x-more", b"3")]
    )
    head = {"type": "http.response.start", "status": 200, "headers": [*REPLICAS, *OWN, (b"x-more", b"3")]}
    assert messages == [head, body(b"a", more=True), body(b"b", more=True), body(b"c", more=False)]
    assert writer.has_started


def test_a_response_of_one_piece_has_its_length_and_the_replicas_type() -> None:
    messages, writer = sent(("end", b"abc", 201, REPLICAS))
    headers = [*REPLICAS, *OWN, (b"content-length", b"3")]
    assert messages == [{"type": "http.response.start", "status": 201, "headers": headers}, body(b"abc", more=False)]
    assert writer.has_started


def test_a_type_that_the_replica_has_not_given_is_not_invented() -> None:
    messages, _ = sent(("end", b"abc", 200, []), headers=())
    assert messages[0]["headers"] == [(b"content-length", b"3")]


@pytest.mark.parametrize(
    ("status", "given", "has_body", "length"),
    [
        (200, [], True, [b"0"]),
        (204, [], True, []),
        (304, [], True, []),
        (200, [(b"content-length", b"9")], False, [b"9"]),
        (200, [], False, []),
    ],
    ids=["empty", "204", "304", "HEAD", "HEAD without a length"],
)
def test_the_length_of_a_response_without_a_body(status: int, given: Any, has_body: bool, length: list[bytes]) -> None:
    messages, _ = sent(("end", b"", status, given), has_body=has_body)
    assert [value for name, value in messages[0]["headers"] if name == b"content-length"] == length


def test_headers_cannot_follow_the_head() -> None:
    _, writer = sent(("write", b"a", 200, []))
    with pytest.raises(AssertionError, match="the head was sent"):
        writer.add_headers(OWN)


def test_a_stream_that_a_comment_has_begun_has_no_second_head() -> None:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def scenario() -> None:
        with StreamKeepAlive(send, 0.005) as stream:
            writer = ClientWriter(stream.send, OWN, stream=stream)
            assert not writer.has_started
            while len(messages) < 2:
                await asyncio.sleep(0.001)
            assert writer.has_started
            await writer.write(b"a", 200, REPLICAS)
            await writer.end(b"b", 200, REPLICAS)

    run(scenario())
    assert [message["type"] for message in messages].count("http.response.start") == 1
    assert messages[1] == body(b": waiting\n\n", more=True)
    assert messages[-2:] == [body(b"a", more=True), body(b"b", more=False)]
