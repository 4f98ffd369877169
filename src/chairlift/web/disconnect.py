"""Presence: whether the client is still there while it is worked for; work for nobody is cancelled at once."""

import asyncio
from types import TracebackType
from typing import Self

from chairlift.web.body import ClientGone, Receive


class Presence:
    """Enter it once the body was read; when the client leaves, what is inside is cancelled and ClientGone raised.

    A client that has closed its own direction alone counts as gone, as everywhere where HTTP/1.1 is served.
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
        del self._watcher, self._task  # else each would hold the other until garbage is looked for
        if self._is_gone and isinstance(error, asyncio.CancelledError) and task.uncancel() == 0:
            raise ClientGone("the client left") from None

    def over(self) -> None:
        """The answer is complete: nobody has to be there any more."""
        self._is_over = True

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_over:
            self._is_gone = True
            self._task.cancel()  # it is there while nothing is over
