"""PauseHolders: several threads that hold one engine; it goes on when the last of them leaves."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


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
