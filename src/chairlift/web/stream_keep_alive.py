"""StreamKeepAlive: sends a comment when a stream was silent for a time, so that no proxy or client gives it up.

    request ── silence ──> head, ": waiting, 3 ahead" ── silence ──> ": waiting" ──> first event ── silence ──> comment

Nothing is sent before the first time is over, so that earlier errors have their own status.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from chairlift.protocol.sse import comment_block
from chairlift.protocol.translation.base import EVENT_STREAM
from chairlift.web.body import Message, Send
from chairlift.web.error_responses import Header

EVENT_STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", EVENT_STREAM),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

WAITING, GENERATING = b"waiting", b"generating"
"""What a comment says before the first token, and behind it: tokens may be held back, or the request was preempted."""

TIMER_TOLERANCE_SECONDS = 1e-3
"""An event loop may fire a timer this much too early."""


class StreamKeepAlive:
    """Wraps the sends of one streamed response. Belongs to the task that sends; use it as a context manager.

    One timer covers the whole response. A comment has a task of its own, and the next message waits for that task, so
    that messages never mix. While a message is being sent there is no comment: the client is slow, not the stream.

    Attributes:
        head: returns the headers with which the response begins if a comment is sent first.
        comment: returns the text of the next comment; b"" for none now.
        has_started: whether the head was sent, so that an error can only be reported in the stream.
    """

    def __init__(
        self, send: Send, seconds: float, *, first_seconds: float | None = None,
        head: Callable[[], Sequence[Header]] = lambda: EVENT_STREAM_HEADERS,
        comment: Callable[[], bytes] = lambda: WAITING,
    ) -> None:  # fmt: skip
        """Wrap `send`; a comment follows `seconds` of silence, 0 for none, the first one `first_seconds`."""
        self._send, self._seconds = send, seconds
        self._first_seconds = seconds if first_seconds is None else first_seconds
        self.head, self.comment = head, comment
        self.has_started = False
        self._is_sending = self._is_over = False
        self._comment_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._silent_since = self._loop.time() + self._first_seconds - self._seconds
        if self._seconds > 0:
            self._timer = self._loop.call_later(self._first_seconds, self._check)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._comment_task is not None:
            self._comment_task.cancel()

    @property
    def is_open(self) -> bool:
        """Whether the stream has begun and not ended, so that an error is an event of it."""
        return self._seconds > 0 and self.has_started and not self._is_over

    async def send(self, message: Message) -> None:
        """Send a message of the response, behind a comment that is being sent."""
        self._is_sending = True
        if self._comment_task is not None:
            await self._comment_task
            self._comment_task = None
        is_head = message["type"] == "http.response.start"
        self.has_started = self.has_started or is_head
        self._is_over = not is_head and not message.get("more_body")
        await self._send(message)
        self._is_sending, self._silent_since = False, self._loop.time()

    def _check(self) -> None:
        """Send a comment if it is time, and set the timer again."""
        task = self._comment_task
        if self._is_over or (task is not None and task.done() and task.exception() is not None):
            return  # the next message gets the error
        now = self._loop.time()
        is_busy = self._is_sending or (task is not None and not task.done())
        left = self._seconds - (0.0 if is_busy else now - self._silent_since)
        if left <= TIMER_TOLERANCE_SECONDS:
            left = self._seconds
            if text := self.comment():
                self._comment_task = self._loop.create_task(self._send_comment(text, self._begin()))
        self._timer = self._loop.call_later(left, self._check)

    def _begin(self) -> list[Message]:
        """Return the head unless it was sent. The response has started then: what the sender decides now follows it."""
        if self.has_started:
            return []
        self.has_started = True
        return [{"type": "http.response.start", "status": 200, "headers": [*self.head()]}]

    async def _send_comment(self, text: bytes, head: list[Message]) -> None:
        for message in (*head, {"type": "http.response.body", "body": comment_block(text), "more_body": True}):
            await self._send(message)
        self._silent_since = self._loop.time()
