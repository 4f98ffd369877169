"""WriteTimeout: drops the connection of a client that does not read a streamed response for too long."""

import asyncio
import logging
from types import TracebackType
from typing import Self

from chairlift.web.body import Message, Scope, Send
from chairlift.web.connection_end import abort_connection

log = logging.getLogger(__name__)


class WriteTimeout:
    """Wraps the sends of a streamed response.

    One timer covers all pieces of a response: a timeout around each would cost more than the piece. A dropped
    connection is reported as a usual disconnect.
    """

    def __init__(self, scope: Scope, send: Send, seconds: float) -> None:
        self._scope = scope
        self._send = send
        self._seconds = seconds
        self._since: float | None = None  # when the current send started

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._seconds, self._check)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._timer.cancel()

    async def send(self, message: Message) -> None:
        """Send a piece; waits while the client has not read the earlier ones."""
        self._since = self._loop.time()
        await self._send(message)
        self._since = None

    def _check(self) -> None:
        now = self._loop.time()
        since = now if self._since is None else self._since
        if now - since >= self._seconds:
            log.info("the client read nothing for %g s: its connection is dropped", self._seconds)
            abort_connection(self._scope)
        else:
            self._timer = self._loop.call_at(since + self._seconds, self._check)
