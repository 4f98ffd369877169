"""LiveFeed: collects only for watchers, once for all of them, and queues nothing for a slow one."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from chairlift.core.errors import EngineDead, Overloaded
from chairlift.web.service import live_feed
from chairlift.web.service.event_ring_buffer import EventRingBuffer
from chairlift.web.service.live_feed import LiveFeed
from support_live import watching
from support_router import serving
from support_server import run


class Source:
    """A topic that counts how often it was collected."""

    def __init__(self) -> None:
        self.num_collected = 0
        self.value: object = {"n": 0}
        self.error: Exception | None = None

    async def collect(self) -> object | None:
        self.num_collected += 1
        if self.error is not None:
            raise self.error
        return self.value


def make_feed(source: Source, log: EventRingBuffer | None = None, interval: float = 0.002, **options: Any) -> LiveFeed:
    return LiveFeed(
        lambda: {"schema": 1}, {"value": source.collect}, {} if log is None else {"entries": log},
        interval_seconds=interval, write_timeout=options.pop("write_timeout", 10.0),
    )  # fmt: skip


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def with_feed(feed: LiveFeed, scenario: Callable[[str], Awaitable[None]]) -> None:
    """Serve a feed, run the scenario with its URL, and check that nothing of it is left."""

    async def serve() -> None:
        async with serving(feed.stream) as url:
            await scenario(url)
            await until(lambda: not feed.num_watchers)
        assert not feed.is_collecting

    run(serve())


def test_nothing_is_collected_without_a_watcher() -> None:
    source = Source()
    feed = make_feed(source)

    async def scenario(url: str) -> None:
        await asyncio.sleep(0.02)
        assert source.num_collected == 0 and not feed.is_collecting
        async with watching(url) as stream:
            assert await stream.next_data("hello") == {"schema": 1}
            assert await stream.next_data("value") == {"n": 0}
        await until(lambda: not feed.num_watchers)
        assert not feed.is_collecting
        num_collected = source.num_collected
        await asyncio.sleep(0.02)
        assert source.num_collected == num_collected

    with_feed(feed, scenario)


def test_watchers_get_the_same_bytes_of_one_collection() -> None:
    source = Source()
    feed = make_feed(source, interval=0.05)

    async def scenario(url: str) -> None:
        async with watching(url) as first, watching(url) as second, watching(url) as third:
            streams = [first, second, third]
            for stream in streams:
                await stream.next_data("value")
            before = source.num_collected
            source.value = {"n": 1, "rows": [[1.5, "x"]]}
            got = [await stream.next() for stream in streams]
            assert got == [("value", '{"n":1,"rows":[[1.5,"x"]]}')] * 3
            assert source.num_collected - before <= 2, "each watcher collects for itself"

    with_feed(feed, scenario)


def test_a_value_is_sent_only_when_it_has_changed() -> None:
    source, log = Source(), EventRingBuffer(5)
    feed = make_feed(source, log)

    async def scenario(url: str) -> None:
        async with watching(url) as stream:
            await stream.next_data("value")
            before = source.num_collected
            await until(lambda: source.num_collected > before + 5)
            log.add("news")
            assert await stream.next() == ("entries", '["news"]')

    with_feed(feed, scenario)


def test_a_new_watcher_gets_what_the_log_keeps_and_then_each_entry_once() -> None:
    log = EventRingBuffer(3)
    for number in range(5):
        log.add(number)
    feed = make_feed(Source(), log)

    async def scenario(url: str) -> None:
        async with watching(url) as stream:
            assert await stream.next_data("entries") == [2, 3, 4]
            log.add(5)
            assert await stream.next_data("entries") == [5]

    with_feed(feed, scenario)


def test_a_slow_watcher_skips_values_and_nothing_is_queued_for_it() -> None:
    source, log = Source(), EventRingBuffer(4)
    feed = make_feed(source, log)
    may_send = asyncio.Event()
    sent: list[bytes] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))
        if len(sent) > 1:
            await may_send.wait()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario() -> None:
        watching_task = asyncio.create_task(feed.stream({"type": "http"}, receive, send))
        await until(lambda: len(sent) == 2)  # the head, and the first events, which block
        for number in range(1, 400):
            source.value = {"n": number, "padding": "x" * 1000}
            log.add(number)
            if not number % 20:
                before = source.num_collected
                await until(lambda before=before: source.num_collected > before)  # type: ignore[misc]
        before = source.num_collected
        await until(lambda: source.num_collected > before + 1)
        assert len(sent) == 2
        may_send.set()
        await until(lambda: len(sent) == 3)
        events = [line for line in sent[2].split(b"\n") if line.startswith(b"data: ")]
        assert [json.loads(line[6:]) for line in events] == [
            {"n": 399, "padding": "x" * 1000}, [396, 397, 398, 399],
        ]  # fmt: skip
        watching_task.cancel()
        await asyncio.gather(watching_task, return_exceptions=True)
        assert not feed.num_watchers and not feed.is_collecting

    run(scenario())


def unread() -> tuple[asyncio.Event, Callable[[Any], Awaitable[None]], Callable[[], Awaitable[dict[str, Any]]]]:
    """Return a connection whose client reads nothing: whether it is cut, `send` and `receive`."""
    is_cut = asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        await is_cut.wait()

    async def receive() -> dict[str, Any]:
        await is_cut.wait()
        return {"type": "http.disconnect"}

    return is_cut, send, receive


def test_a_watcher_that_reads_nothing_is_dropped() -> None:
    feed = make_feed(Source(), write_timeout=0.02)
    is_cut, send, receive = unread()

    async def scenario() -> None:
        async with asyncio.timeout(10):
            await feed.stream({"type": "http", "state": {"abort": is_cut.set}}, receive, send)
        assert is_cut.is_set() and not feed.num_watchers and not feed.is_collecting

    run(scenario())


def test_values_that_are_not_known_leave_the_stream_open() -> None:
    source = Source()
    feed = make_feed(source)

    async def scenario(url: str) -> None:
        async with watching(url) as stream:
            await stream.next_data("value")
            source.error = EngineDead("killed")
            before = source.num_collected
            await until(lambda: source.num_collected > before + 3)
            source.error, source.value = None, {"n": "again"}
            assert await stream.next_data("value") == {"n": "again"}
            source.value = None
            before = source.num_collected
            await until(lambda: source.num_collected > before + 3)
            source.value = {"n": "later"}
            assert await stream.next_data("value") == {"n": "later"}

    with_feed(feed, scenario)


def test_a_bug_of_one_topic_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_feed, "RETRY_SECONDS", 0.0)
    broken, other = Source(), Source()
    broken.error = ValueError("a bug")
    feed = make_feed(broken)
    feed.add_topic("other", other.collect)

    async def scenario(url: str) -> None:
        async with watching(url) as stream:
            assert await stream.next_data("other") == {"n": 0}

    with_feed(feed, scenario)
    assert "value cannot be collected" in caplog.text


def test_the_number_of_watchers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "MAX_WATCHERS", 1)
    feed = make_feed(Source())

    async def scenario(url: str) -> None:
        async with watching(url) as stream:
            await stream.next()
            with pytest.raises(Overloaded, match="1 streams of live data are open, which is the limit"):
                await feed.stream({"type": "http"}, stream.next, stream.next)  # type: ignore[arg-type]
            assert feed.num_watchers == 1

    with_feed(feed, scenario)


def test_a_quiet_stream_has_comments_and_ends_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "HEARTBEAT_SECONDS", 0.005)
    monkeypatch.setattr(live_feed, "MAX_STREAM_SECONDS", 0.1)
    feed = make_feed(Source())

    async def scenario(url: str) -> None:
        async with watching(url) as stream:
            assert stream.response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert stream.response.headers["cache-control"] == "no-store"
            body = b"".join([piece async for piece in stream.response.aiter_bytes()])
            assert b"\n\n: still here\n\n" in body

    with_feed(feed, scenario)


def test_a_quiet_stream_sends_nothing_between_two_comments() -> None:
    source, log = Source(), EventRingBuffer(5)
    feed = make_feed(source, log)
    sent: list[bytes] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario() -> None:
        watching_task = asyncio.create_task(feed.stream({"type": "http"}, receive, send))
        await until(lambda: any(b"value" in body for body in sent))
        num_sent, before = len(sent), source.num_collected
        await until(lambda: source.num_collected > before + 5)
        assert sent[num_sent:] == []
        log.add(1)
        await until(lambda: len(sent) > num_sent)
        assert sent[num_sent:] == [b"event: entries\ndata: [1]\n\n"]
        watching_task.cancel()
        await asyncio.gather(watching_task, return_exceptions=True)

    run(scenario())


def test_a_head_request_gets_the_headers_and_watches_nothing() -> None:
    source = Source()
    feed = make_feed(source)

    async def scenario(url: str) -> None:
        async with httpx.AsyncClient(base_url=url) as http:
            response = await http.head("/admin/live", timeout=10)
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert source.num_collected == 0 and not feed.num_watchers

    with_feed(feed, scenario)


def test_close_ends_the_streams() -> None:
    feed = make_feed(Source())

    async def scenario(url: str) -> None:
        async with watching(url) as first, watching(url) as second:
            for stream in (first, second):
                await stream.next_data("value")
            await feed.close()
            assert not feed.num_watchers and not feed.is_collecting
            for stream in (first, second):
                with pytest.raises(StopAsyncIteration):  # a complete response, no cut connection
                    await stream.next()
            async with watching(url) as late:
                with pytest.raises(StopAsyncIteration):
                    await late.next_data("entries")

    with_feed(feed, scenario)


def test_close_cuts_the_connection_of_a_watcher_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "CLOSE_SECONDS", 0.01)
    feed = make_feed(Source(), write_timeout=1e3)
    is_cut, send, receive = unread()

    async def scenario() -> None:
        scope = {"type": "http", "state": {"abort": is_cut.set}}
        watching_task = asyncio.create_task(feed.stream(scope, receive, send))
        await until(lambda: feed.num_watchers == 1)
        await feed.close()
        async with asyncio.timeout(10):
            await watching_task
        assert is_cut.is_set() and not feed.num_watchers

    run(scenario())


def test_an_entry_becomes_json_when_it_is_sent() -> None:
    class Entry:
        def as_json(self) -> dict[str, Any]:
            return {"a": 1}

    log = EventRingBuffer(5)
    log.add(Entry())
    feed = make_feed(Source(), log)

    async def scenario(url: str) -> None:
        async with watching(url) as stream:
            assert await stream.next_data("entries") == [{"a": 1}]

    with_feed(feed, scenario)
