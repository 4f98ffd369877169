"""PauseHolders: several threads that hold one engine; it goes on when the last of them leaves."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from chairlift.core.errors import EngineDead
from chairlift.engine.client.inline import InlineClient


class PauseHolders:
    """Counts the holders of a pause by thread. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: list[int] = []
        self._engine = ExitStack()

    @property
    def is_held_by_this_thread(self) -> bool:
        """Whether the calling thread is inside a pause."""
        return threading.get_ident() in self._holders

    def check_not_held(self, method: str) -> None:
        """Raise RuntimeError where the calling thread holds the engine, for whose next step `method` would wait."""
        if self.is_held_by_this_thread:
            raise RuntimeError(
                f"{method} cannot be called from inside a pause of this thread, because it waits for the engine, which "
                f"waits for the end of the pause: leave the `pause` context before calling {method}"
            )

    @contextmanager
    def hold(self, pause: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Hold the engine while the context is open; the first holder pauses it. Raises what `pause` raises."""
        thread = threading.get_ident()
        with self._lock:
            if not self._holders:
                self._engine.enter_context(pause())
            self._holders.append(thread)
        try:
            yield
        finally:
            with self._lock:
                self._holders.remove(thread)
                if not self._holders:
                    self._engine.close()


@contextmanager
def paused(client: InlineClient) -> Iterator[None]:
    """Hold an engine. Raises RuntimeError, as transformers does, when it ends before it is held."""
    with ExitStack() as stack:
        try:
            stack.enter_context(client.paused())
        except EngineDead as error:
            raise RuntimeError("the engine ended before it could be paused") from error
        yield
