"""EngineHold: an engine thread that waits between two steps."""

import queue
import threading
from collections.abc import Callable


class EngineHold:
    """Holds an engine thread while another thread uses what the engine uses."""

    def __init__(self) -> None:
        self._is_held, self._is_released = threading.Event(), threading.Event()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Run calls until the release; the engine thread calls this between two steps."""
        self._is_held.set()
        while (call := self._calls.get()) is not None and not self._is_released.is_set():
            call()

    def call(self, function: Callable[[], None]) -> None:
        """Run a function in the engine thread while it is held; after the release it is not run."""
        self._calls.put(function)

    def wait_until_held(self, is_alive: Callable[[], bool]) -> bool:
        """Wait until the engine thread is held; return False if it has ended."""
        while not self._is_held.wait(timeout=1.0):
            if not is_alive():
                return self._is_held.is_set()
        return True

    def release(self) -> None:
        """Let the engine thread go on."""
        self._is_released.set()
        self._calls.put(None)
