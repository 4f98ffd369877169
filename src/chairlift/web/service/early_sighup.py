"""hold_reloads, take_reload: holds a SIGHUP that comes before the event loop runs, which would end the process."""

import signal
import threading

_is_requested = threading.Event()


def hold_reloads() -> None:
    """From now on remember a SIGHUP; call it first thing in a process that serves. Only the main thread can."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, lambda number, frame: _is_requested.set())


def take_reload() -> bool:
    """Return whether a SIGHUP came since hold_reloads(), once."""
    is_requested = _is_requested.is_set()
    _is_requested.clear()
    return is_requested
