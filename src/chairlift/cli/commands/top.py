"""`chairlift top`: a live table of a server's replicas, their requests, tokens a second and caches."""

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from chairlift.cli.client_tls import tls_context
from chairlift.cli.live_screen import LiveScreen
from chairlift.cli.server_load_reader import DOWN, FleetReader, FleetReading
from chairlift.cli.settings.resolve_settings import process_environment
from chairlift.cli.terminal_fold import obeys_sequences
from chairlift.cli.top_table import top_lines
from chairlift.core.errors import ConfigError

FILE_COLUMNS = 160
"""Width of the table where it is not written to a terminal, unless the variable COLUMNS names one."""


def run(arguments: argparse.Namespace) -> int:
    """Read the server at each interval and show it; returns the exit code, 1 if --once finds it down.

    Raises ConfigError and FleetAccessDenied.
    """
    if not 0.1 <= arguments.interval <= 3600:
        raise ConfigError(f"--interval must be from 0.1 to 3600 seconds, got {arguments.interval:g}", option="interval")
    environ = process_environment()
    api_key, admin_key = (environ.get(name, "") for name in ("CHAIRLIFT_API_KEY", "CHAIRLIFT_ADMIN_KEY"))
    tls = tls_context(arguments.tls_ca, arguments.tls_client_cert, arguments.tls_client_key)
    reader = FleetReader(arguments.url, api_key, admin_key, tls)
    try:
        if arguments.once or not (arguments.json or obeys_sequences(sys.stdout)):
            return _show_once(reader, arguments)
        if arguments.json:
            with _interrupt_flag() as interrupted:
                _repeat(reader, arguments.interval, _print_json, interrupted)
        else:
            _show_live(reader, arguments.interval)
    except KeyboardInterrupt:
        return 0
    return 0


def _show_once(reader: FleetReader, arguments: argparse.Namespace) -> int:
    """Print one reading, with the rates of one interval."""
    reading = reader.read()
    if reading.service != DOWN:
        time.sleep(arguments.interval)
        reading = reader.read()
    if arguments.json:
        _print_json(reading)
    else:
        columns = shutil.get_terminal_size((FILE_COLUMNS, 24)).columns
        print("\n".join(top_lines(reading, columns, is_colored=_has_colors())))
    return 1 if reading.service == DOWN else 0


@contextmanager
def _interrupt_flag() -> Iterator[Event]:
    """Set the flag that is yielded at Ctrl-C, beside the KeyboardInterrupt: Python drops one in a destructor."""
    interrupted = Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


class _ReaderThread(threading.Thread):
    """Reads the server at each interval in the background: a server that hangs does not hold up the keys.

    Attributes:
        reading: the last reading; None before the first one.
        down_since: monotonic time of the first of the last readings if the server is down in all of them, else None.
        error: the error that has ended the thread.
    """

    def __init__(self, reader: FleetReader, interval: float, screen: LiveScreen) -> None:
        super().__init__(name="chairlift-top", daemon=True)
        self._reader, self._interval, self._screen = reader, interval, screen
        self._stopped = Event()
        self.reading: FleetReading | None = None
        self.down_since: float | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Read until `stop()`, or an error such as that of a rejected key."""
        next_at = time.monotonic()
        while self.error is None and not self._stopped.is_set():
            try:
                self._record(self._reader.read())
            except Exception as error:
                self.error = error  # for the main thread
            self._screen.wake()
            next_at = max(next_at + self._interval, time.monotonic())
            self._stopped.wait(max(0.0, next_at - time.monotonic()))
        self._stopped.wait()
        self._screen.close()

    def stop(self) -> None:
        """End the thread after the reading that it is at."""
        self._stopped.set()

    def _record(self, reading: FleetReading) -> None:
        if reading.service != DOWN:
            self.down_since = None
        elif self.down_since is None:
            self.down_since = reading.at_seconds
        self.reading = reading


def _show_live(reader: FleetReader, interval: float) -> None:
    """Draw each reading, and again after a change of the terminal's size, until q or Ctrl-C."""
    screen = LiveScreen()
    thread = _ReaderThread(reader, interval, screen)
    try:
        with screen:
            thread.start()
            while not screen.is_interrupted:
                if thread.error is not None:
                    raise thread.error
                size = screen.size()
                screen.draw(_screen_lines(thread, reader.url, interval, size.columns, size.lines))
                if set(screen.wait()) & set("qQ"):
                    return
    finally:
        thread.stop()


def _screen_lines(thread: _ReaderThread, url: str, interval: float, columns: int, lines: int) -> list[str]:
    """Return exactly as many lines as the terminal has, the last one about the keys."""
    reading, down_since = thread.reading, thread.down_since
    foot = f"q quits; readings every {interval:g} s"
    if reading is None:
        shown = [f"reading {url} ..."[:columns]]
    else:
        shown = top_lines(reading, columns, max(1, lines - 2), is_colored=_has_colors())
        if down_since is not None:
            foot = f"q quits; down for {reading.at_seconds - down_since:.0f} s, tried again every {interval:g} s"
    shown = shown[: max(0, lines - 1)]
    return [*shown, *[""] * (lines - 1 - len(shown)), foot[:columns]]


def _has_colors() -> bool:
    return obeys_sequences(sys.stdout) and not os.environ.get("NO_COLOR")


def _repeat(reader: FleetReader, interval: float, show: Callable[[FleetReading], Any], interrupted: Event) -> None:
    """Show a reading at each interval, until the flag is set."""
    next_at = time.monotonic()
    while not interrupted.is_set():
        show(reader.read())
        next_at = max(next_at + interval, time.monotonic())
        time.sleep(next_at - time.monotonic() if next_at > time.monotonic() else 0)


def _print_json(reading: FleetReading) -> None:
    print(json.dumps(reading.as_json()), flush=True)
