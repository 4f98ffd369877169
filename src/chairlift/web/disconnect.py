"""DisconnectWatcher: cancels a request's work at once when its client disconnects."""

import asyncio
from types import TracebackType
from typing import Self

from chairlift.web.body import ClientGone, Receive


class DisconnectWatcher:
    """Cancels the code in its context when the client disconnects. Enter it after the body was read.

    Raises ClientGone then. A client that has closed only its sending direction is still there; see
    HalfClosedConnection.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_gone = False
        self._is_over = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._task = task
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._watcher.cancel()
        task = self._task
        del self._watcher, self._task  # else they form a cycle that only the garbage collector frees
        if self._is_gone and isinstance(error, asyncio.CancelledError) and task.uncancel() == 0:
            raise ClientGone("the client disconnected") from None

    def response_complete(self) -> None:
        """Record that the response is complete: a disconnect does not matter any more."""
        self._is_over = True

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_over:
            self._is_gone = True
            self._task.cancel()  # the attribute exists until __aexit__
