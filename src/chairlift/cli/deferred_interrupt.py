"""deferred_interrupt: delays Ctrl-C until a block has ended."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until the block is done, so that no line is lost or cut.

    A second Ctrl-C interrupts at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_interrupted = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if is_interrupted:
        raise KeyboardInterrupt
