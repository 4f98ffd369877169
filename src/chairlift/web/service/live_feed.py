"""LiveFeed: one stream of server-sent events for any number of watchers, from values that are collected once.

    source ── collect, every interval while there is a watcher ──> topics: the newest value
    logs ─────────────────────────────────────────────────────────> watchers: what each has not got, as one write

A watcher that reads slowly skips values: it gets the newest of each topic. Nothing is queued for it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import orjson

from chairlift.core.errors import ChairliftError, Overloaded
from chairlift.protocol.sse import named_event
from chairlift.web.body import ClientGone, Receive, Scope, Send
from chairlift.web.connection_end import abort_connection
from chairlift.web.disconnect import DisconnectWatcher
from chairlift.web.error_responses import Header
from chairlift.web.service.event_ring_buffer import EventRingBuffer
from chairlift.web.write_timeout import WriteTimeout

log = logging.getLogger(__name__)

MAX_WATCHERS = 64
"""Streams that are open at once; one more is rejected."""

HEARTBEAT_SECONDS = 10.0
"""Seconds without news after which a comment is sent, so that proxies keep the connection."""

MAX_STREAM_SECONDS = 3600.0
"""Seconds after which a stream ends: the next one needs a key that is still valid."""

CLOSE_SECONDS = 1.0
"""Seconds that streams have to end when the process does; the connection of a client that reads nothing is cut then."""

RETRY_SECONDS = 1.0
HEARTBEAT = b": still here\n\n"

STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)

Collect = Callable[[], Awaitable[object | None]]
"""Returns the value of a topic, None to keep the one before. Raises ChairliftError where it is not known."""


@runtime_checkable
class HasJson(Protocol):
    """An entry of a log that becomes JSON only when it is sent."""

    def as_json(self) -> dict[str, Any]:
        """Return the entry as JSON has it."""
        ...


@dataclass(slots=True)
class _Topic:
    """A value of which only the newest matters."""

    name: bytes
    collect: Collect
    event: bytes = b""
    version: int = 0


@dataclass(slots=True, eq=False)
class _Watcher:
    """What one stream has sent; `scope` is its request."""

    scope: Scope
    versions: dict[bytes, int] = field(default_factory=dict)
    numbers: dict[bytes, int] = field(default_factory=dict)
    is_ended: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class LiveFeed:
    """The route of a stream. Belongs to one event loop."""

    def __init__(
        self, first_event: Callable[[], object], topics: Mapping[str, Collect], logs: Mapping[str, EventRingBuffer], *,
        interval_seconds: float, write_timeout: float,
    ) -> None:  # fmt: skip
        """Prepare the feed; nothing runs without a watcher.

        Args:
            first_event: returns the data of the event `hello`, with which each stream begins.
            topics: name of an event -> what collects its data.
            logs: name of an event -> the log whose new entries are its data, as a list.
            interval_seconds: time between two collections.
            write_timeout: seconds after which a watcher that reads nothing is dropped.
        """
        self._first_event = first_event
        self._topics = [_Topic(name.encode(), collect) for name, collect in topics.items()]
        self._logs = {name.encode(): each for name, each in logs.items()}
        self._interval, self._write_timeout = interval_seconds, write_timeout
        self._watchers: set[_Watcher] = set()
        self._relays: set[_Watcher] = set()
        self._collecting: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def num_watchers(self) -> int:
        """Open streams."""
        return len(self._watchers)

    @property
    def is_collecting(self) -> bool:
        """Whether values are collected."""
        return self._collecting is not None

    def add_topic(self, name: str, collect: Collect) -> None:
        """Add a topic; call it before the first stream."""
        self._topics.append(_Topic(name.encode(), collect))

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client disconnects, for MAX_STREAM_SECONDS at most. Raises Overloaded."""
        if scope.get("method") == "HEAD":
            await self._send_headers(send)
            await send({"type": "http.response.body", "body": b""})
            return
        if len(self._watchers) >= MAX_WATCHERS:
            raise Overloaded(
                f"{MAX_WATCHERS} streams of live data are open, which is the limit; close one", retry_after=5.0
            )
        watcher = _Watcher(scope)
        self._watchers.add(watcher)
        try:
            with contextlib.suppress(ClientGone), WriteTimeout(scope, send, self._write_timeout) as timed:
                async with DisconnectWatcher(receive) as disconnect:
                    await self._send_events(watcher, timed.send)
                    disconnect.response_complete()
        finally:
            self._leave(watcher)

    async def relay(self, scope: Scope, receive: Receive, send: Send, chunks: AsyncIterator[bytes]) -> None:
        """Send the events of another server until they end; like a stream of its own, the end of the process ends it.

        Raises Overloaded.
        """
        if len(self._relays) >= MAX_WATCHERS:
            raise Overloaded(
                f"{MAX_WATCHERS} streams of live data of replicas are open, which is the limit; close one",
                retry_after=5.0,
            )
        watcher = _Watcher(scope)
        self._relays.add(watcher)
        try:
            with contextlib.suppress(ClientGone), WriteTimeout(scope, send, self._write_timeout) as timed:
                async with DisconnectWatcher(receive) as disconnect:
                    await self._send_headers(timed.send)
                    await self._pass_on(watcher, timed.send, chunks)
                    await timed.send({"type": "http.response.body", "body": b""})
                    disconnect.response_complete()
        finally:
            self._relays.discard(watcher)
            watcher.is_ended.set()

    async def _pass_on(self, watcher: _Watcher, send: Send, chunks: AsyncIterator[bytes]) -> None:
        async def send_all() -> None:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

        tasks = [asyncio.create_task(send_all()), asyncio.create_task(watcher.news.wait())]
        try:
            ended, _ = await asyncio.wait(tasks, timeout=MAX_STREAM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            task.result()

    async def close(self) -> None:
        """End all streams, as the last act of the process; waits for their ends, twice CLOSE_SECONDS at most."""
        self._is_closed = True
        watchers = [*self._watchers, *self._relays]
        for watcher in watchers:
            watcher.news.set()
        ends = [asyncio.create_task(watcher.is_ended.wait()) for watcher in watchers]
        if not ends:
            return
        _, open_ends = await asyncio.wait(ends, timeout=CLOSE_SECONDS)
        for watcher in (*self._watchers, *self._relays):
            abort_connection(watcher.scope)
        if open_ends:
            await asyncio.wait(open_ends, timeout=CLOSE_SECONDS)

    # -- one watcher -----------------------------------------------------------------------------------------------

    async def _send_events(self, watcher: _Watcher, send: Send) -> None:
        await self._send_headers(send)
        body = named_event(b"hello", orjson.dumps(self._first_event()))
        if self._collecting is None:
            self._collecting = asyncio.create_task(self._collect_forever())
        until = time.monotonic() + MAX_STREAM_SECONDS
        while not self._is_closed and time.monotonic() < until:
            body += self._take_news(watcher)
            await send({"type": "http.response.body", "body": body or HEARTBEAT, "more_body": True})
            body = b""
            with contextlib.suppress(TimeoutError):  # not wait_for: it drops a cancellation that comes with the news
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await watcher.news.wait()
            watcher.news.clear()
        await send({"type": "http.response.body", "body": b""})

    async def _send_headers(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS]})

    def _has_news(self, watcher: _Watcher) -> bool:
        """Return whether there are events that a watcher has not got."""
        return any(topic.version > watcher.versions.get(topic.name, 0) for topic in self._topics) or any(
            entries.num_added > watcher.numbers.get(name, 0) for name, entries in self._logs.items()
        )

    def _take_news(self, watcher: _Watcher) -> bytes:
        """Return the events that a watcher has not got: the newest of each topic, and new entries of logs."""
        events: list[bytes] = []
        for topic in self._topics:
            if topic.version > watcher.versions.get(topic.name, 0):
                watcher.versions[topic.name] = topic.version
                events.append(topic.event)
        for name, entries in self._logs.items():
            if new := entries.since(watcher.numbers.get(name, 0)):
                events.append(named_event(name, orjson.dumps(new, _as_json, orjson.OPT_NON_STR_KEYS)))
            watcher.numbers[name] = entries.num_added
        return b"".join(events)

    def _leave(self, watcher: _Watcher) -> None:
        """Remove a watcher; after the last one nothing is collected or kept."""
        self._watchers.discard(watcher)
        watcher.is_ended.set()
        if not self._watchers and self._collecting is not None:
            self._collecting.cancel()
            self._collecting = None
            for topic in self._topics:
                topic.event = b""
                topic.version = 0

    # -- all watchers ----------------------------------------------------------------------------------------------

    async def _collect_forever(self) -> None:
        while True:
            for topic in self._topics:
                await self._collect(topic)
            self._wake_watchers()
            await asyncio.sleep(self._interval)

    def _wake_watchers(self) -> None:
        for watcher in self._watchers:
            if self._has_news(watcher):
                watcher.news.set()

    async def _collect(self, topic: _Topic) -> None:
        try:
            value = await topic.collect()
            event = b"" if value is None else named_event(topic.name, orjson.dumps(value))
        except ChairliftError as error:
            log.debug("%s is not known now: %s", topic.name.decode(), error)
            return
        except Exception:
            log.exception("%s cannot be collected", topic.name.decode())
            await asyncio.sleep(RETRY_SECONDS)
            return
        if event and event != topic.event:
            topic.event = event
            topic.version += 1


def _as_json(entry: object) -> object:
    """Return an entry of a log as JSON has it. Raises TypeError for one that is not JSON."""
    if isinstance(entry, HasJson):
        return entry.as_json()
    raise TypeError(f"{type(entry).__name__} is no JSON")
