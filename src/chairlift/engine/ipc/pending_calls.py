"""Questions: what a client has asked an engine in another process, and who waits for the answers."""

import threading
from concurrent.futures import Future
from typing import Any

from chairlift.core.errors import ChairliftError, EngineDead
from chairlift.engine.ipc.messages import RemoteCall, RemoteReply, WireError, as_engine_error, read_answer


class PendingCalls:
    """Each question has a number and a Future; it ends by the answer, or by the engine's death."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}
        self._closed: EngineDead | None = None
        self._asked = 0

    def start(self, question: str) -> tuple[RemoteCall, "Future[Any]"]:
        """Return the message to send and the Future of its answer. Raises EngineDead after close()."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed is not None:
                raise EngineDead(self._closed.message)
            self._asked += 1
            self._waiting[self._asked] = (question, future)
            return RemoteCall(self._asked, question), future

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        with self._lock:
            self._waiting.pop(number, None)

    def complete(self, message: RemoteReply) -> None:
        """Take an answer; one that nobody waits for is dropped."""
        with self._lock:
            question, future = self._waiting.pop(message.number, ("", None))
        if future is None:
            return
        try:
            if message.error is not None:
                raise message.error
            future.set_result(read_answer(question, message.payload))
        except (ChairliftError, WireError) as fault:
            future.set_exception(as_engine_error(fault, "the engine's answer cannot be read"))

    def fail_all(self, error: EngineDead) -> None:
        """Answer all that are open with the error."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            future.set_exception(error)

    def close(self, error: EngineDead) -> None:
        """Answer all that are open with the error, and take no more."""
        with self._lock:
            self._closed = error
        self.fail_all(error)
