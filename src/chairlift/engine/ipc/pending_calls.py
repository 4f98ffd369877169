"""PendingCalls: matches the replies of an engine process to the remote calls of a client."""

import threading
from concurrent.futures import Future
from typing import Any

from chairlift.core.errors import ChairliftError, EngineDead
from chairlift.engine.ipc.error_encoding import as_engine_error
from chairlift.engine.ipc.messages import RemoteCall, RemoteReply, WireError, decode_reply


class PendingCalls:
    """Each call has a number and a Future; the reply, or the end of the engine, completes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[str, Future[Any]]] = {}
        self._closed: EngineDead | None = None
        self._last_number = 0

    def start(self, method: str, *arguments: int | str) -> tuple[RemoteCall, "Future[Any]"]:
        """Return the message to send and the Future of its reply.

        Raises EngineDead after close().
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._closed is not None:
                raise EngineDead(self._closed.message)
            self._last_number += 1
            self._pending[self._last_number] = (method, future)
            return RemoteCall(self._last_number, method, arguments), future

    def forget(self, number: int) -> None:
        """Drop a call that its caller does not wait for any more."""
        with self._lock:
            self._pending.pop(number, None)

    def complete(self, message: RemoteReply) -> None:
        """Complete the call of a reply; drop a reply without a pending call."""
        with self._lock:
            method, future = self._pending.pop(message.number, ("", None))
        if future is None:
            return
        try:
            if message.error is not None:
                raise message.error
            future.set_result(decode_reply(method, message.payload))
        except (ChairliftError, WireError) as error:
            future.set_exception(as_engine_error(error, "the engine's reply cannot be read"))

    def fail_all(self, error: EngineDead) -> None:
        """Fail all pending calls with the error."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for _, future in pending.values():
            future.set_exception(error)

    def close(self, error: EngineDead) -> None:
        """Fail all pending calls with the error and reject new ones."""
        with self._lock:
            self._closed = error
        self.fail_all(error)
