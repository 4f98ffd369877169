"""blocked_interrupt: starts child processes that Ctrl-C does not reach, from their first moment on."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def blocked_interrupt() -> Iterator[None]:
    """Delay Ctrl-C for this thread until the block has ended; a child that the block starts never gets it.

    A terminal sends Ctrl-C to all processes of the group. A child inherits the blocked signal, so that it does not end
    with a traceback before it can ignore the signal itself.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
