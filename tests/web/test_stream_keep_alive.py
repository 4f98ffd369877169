"""StreamKeepAlive: what a silent stream sends, and that its comments and its messages never mix."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chairlift.web.body import Message
from chairlift.web.stream_keep_alive import EVENT_STREAM_HEADERS, GENERATING, WAITING, StreamKeepAlive

SHORT_SECONDS, LONG_SECONDS = 0.005, 1000.0
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]}
EARLY_HEAD = {"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM_HEADERS]}


def body(payload: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": payload, "more_body": more}


class FakeClient:
    """Receives messages while `can_read` is set."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.num_begun = 0
        self.can_read = asyncio.Event()
        self.can_read.set()

    async def send(self, message: Message) -> None:
        self.num_begun += 1
        await self.can_read.wait()
        self.messages.append(message)

    async def until(self, number: int) -> None:
        """Wait until so many messages have come."""
        while len(self.messages) < number:
            await asyncio.sleep(0.001)

    async def until_begun(self, number: int) -> None:
        while self.num_begun < number:
            await asyncio.sleep(0.001)


def run(
    scenario: Callable[[FakeClient, StreamKeepAlive], Awaitable[None]], seconds: float = SHORT_SECONDS, **options: Any
) -> FakeClient:
    async def scenario_in_context() -> FakeClient:
        client = FakeClient()
        with StreamKeepAlive(client.send, seconds, **options) as stream:
            await scenario(client, stream)
        return client

    return asyncio.run(asyncio.wait_for(scenario_in_context(), 20))


def test_a_silent_stream_begins_with_its_head_and_comments_and_goes_on_as_it_would_have() -> None:
    async def scenario(client: FakeClient, stream: StreamKeepAlive) -> None:
        assert not stream.has_started and not stream.is_open
        await client.until(4)
        assert stream.has_started and stream.is_open
        await stream.send(body(b"a"))
        await stream.send(body(b"b", more=False))
        assert not stream.is_open

    texts = [b"waiting, 2 ahead", b"waiting, 1 ahead"]
    messages = run(scenario, comment=lambda: texts.pop(0) if texts else WAITING).messages
    assert messages[:3] == [EARLY_HEAD, body(b": waiting, 2 ahead\n\n"), body(b": waiting, 1 ahead\n\n")]
    comments, events = messages[3:-2], messages[-2:]
    assert comments and all(each == body(b": waiting\n\n") for each in comments)
    assert events == [body(b"a"), body(b"b", more=False)]


def test_the_head_is_that_of_the_moment_of_the_comment() -> None:
    async def scenario(client: FakeClient, stream: StreamKeepAlive) -> None:
        stream.head = lambda: [(b"x-late", b"2")]
        stream.comment = lambda: b"later"
        await client.until(2)

    head, comment = run(scenario, 0.05).messages[:2]
    assert head["headers"] == [(b"x-late", b"2")] and comment["body"] == b": later\n\n"


def test_a_silence_within_a_stream_has_comments_too() -> None:
    async def scenario(client: FakeClient, stream: StreamKeepAlive) -> None:
        await stream.send(HEAD)
        await stream.send(body(b"a"))
        await client.until(4)
        await stream.send(body(b"", more=False))

    messages = run(scenario, comment=lambda: GENERATING).messages
    assert messages[:4] == [HEAD, body(b"a"), *[body(b": generating\n\n")] * 2]
    assert sum(message["type"] == "http.response.start" for message in messages) == 1


@pytest.mark.parametrize("seconds", [0.0, LONG_SECONDS])
def test_no_comment_comes_before_its_time(seconds: float) -> None:
    async def scenario(client: FakeClient, stream: StreamKeepAlive) -> None:
        await asyncio.sleep(5 * SHORT_SECONDS)
        assert not stream.has_started and not client.messages
        await stream.send(HEAD)
        await asyncio.sleep(5 * SHORT_SECONDS)
        await stream.send(body(b"a", more=False))

    assert run(scenario, seconds).messages == [HEAD, body(b"a", more=False)]


def test_the_first_comment_may_have_a_time_of_its_own() -> None:
    async def early(client: FakeClient, stream: StreamKeepAlive) -> None:
        await client.until(2)

    async def late(client: FakeClient, stream: StreamKeepAlive) -> None:
        await asyncio.sleep(5 * SHORT_SECONDS)

    assert run(early, LONG_SECONDS, first_seconds=SHORT_SECONDS).messages == [EARLY_HEAD, body(b": waiting\n\n")]
    assert run(late, SHORT_SECONDS, first_seconds=LONG_SECONDS).messages == []


def test_without_a_text_nothing_is_sent() -> None:
    async def scenario(client: FakeClient, stream: StreamKeepAlive) -> None:
        while len(calls) < 3:
            await asyncio.sleep(0.001)
        assert not stream.has_started

    def comment() -> bytes:
        calls.append(1)
        return b""

    calls: list[int] = []
    assert run(scenario, comment=comment).messages == []


def test_a_stream_that_is_never_silent_has_no_comment() -> None:
    async def scenario(client: FakeClient, stream: StreamKeepAlive) -> None:
        await stream.send(HEAD)
        for _ in range(20):
            await asyncio.sleep(0.01)
            await stream.send(body(b"a"))
        await stream.send(body(b"", more=False))

    assert [message.get("body") for message in run(scenario, 2.0).messages] == [None, *[b"a"] * 20, b""]


def test_a_client_that_does_not_read_gets_no_comment() -> None:
    async def scenario(client: FakeClient, stream: StreamKeepAlive) -> None:
        await stream.send(HEAD)
        client.can_read.clear()
        sending = asyncio.create_task(stream.send(body(b"a")))
        await asyncio.sleep(5 * SHORT_SECONDS)
        assert client.num_begun == 2
        client.can_read.set()
        await sending
        await stream.send(body(b"", more=False))

    assert next(each for each in run(scenario).messages if each.get("body")) == body(b"a")


def test_a_message_waits_for_the_comment_before_it() -> None:
    async def scenario(client: FakeClient, stream: StreamKeepAlive) -> None:
        client.can_read.clear()
        await client.until_begun(1)
        assert stream.has_started, "from now on an error is an event"
        sending = asyncio.create_task(stream.send(body(b"a", more=False)))
        await asyncio.sleep(5 * SHORT_SECONDS)
        assert client.num_begun == 1, "neither the message nor another comment overtakes"
        client.can_read.set()
        await sending

    assert run(scenario).messages == [EARLY_HEAD, body(b": waiting\n\n"), body(b"a", more=False)]


def test_nothing_follows_the_end() -> None:
    async def scenario(client: FakeClient, stream: StreamKeepAlive) -> None:
        await stream.send(HEAD)
        await stream.send(body(b"a", more=False))
        await asyncio.sleep(5 * SHORT_SECONDS)

    assert run(scenario).messages[1:] == [body(b"a", more=False)]


def test_the_end_of_the_context_ends_a_comment_that_is_not_read() -> None:
    async def scenario() -> None:
        client = FakeClient()
        client.can_read.clear()
        with StreamKeepAlive(client.send, SHORT_SECONDS):
            await client.until_begun(1)
        client.can_read.set()
        await asyncio.sleep(5 * SHORT_SECONDS)
        assert client.messages == [] and client.num_begun == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_no_comment_follows_one_that_failed() -> None:
    num_sent = 0

    async def failing(message: Message) -> None:
        nonlocal num_sent
        num_sent += 1
        raise OSError("gone")

    async def scenario(client: FakeClient, _: StreamKeepAlive) -> None:
        with StreamKeepAlive(failing, SHORT_SECONDS) as stream:
            await asyncio.sleep(10 * SHORT_SECONDS)
            assert num_sent == 1
            with pytest.raises(OSError, match="gone"):
                await stream.send(body(b"x"))

    run(scenario, LONG_SECONDS)


def test_the_error_of_a_comment_reaches_the_sender() -> None:
    async def scenario() -> None:
        async def fail(message: Message) -> None:
            failed.set()
            raise ConnectionError("gone")

        failed = asyncio.Event()
        with StreamKeepAlive(fail, SHORT_SECONDS) as stream:
            await failed.wait()
            with pytest.raises(ConnectionError, match="gone"):
                await stream.send(body(b"a"))

    asyncio.run(asyncio.wait_for(scenario(), 20))
