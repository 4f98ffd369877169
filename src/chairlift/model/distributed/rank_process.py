"""RankProcess: one rank in a process of its own, seen from rank 0, which starts it, sends it calls and reads reports.

The process ends when its standard input does: when rank 0 closes it, or ends in any way.
"""

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable

from chairlift.core.errors import EngineDead
from chairlift.core.host.process_end import describe_end
from chairlift.model.distributed.frames import read_frame, write_frame
from chairlift.model.distributed.rank_messages import FromRank, StartRank, decode_from_rank, encode

log = logging.getLogger(__name__)

COMMAND = ("-P", "-m", "chairlift.model.distributed.rank_main")
"""Interpreter arguments: the caller's script is not imported again, and with -P nothing in the current folder is."""

SEND_SECONDS = 60.0
"""Seconds that a rank may leave a full pipe unread."""

EXIT_SECONDS = 5.0
"""Seconds that a process may take to end."""


class RankProcess:
    """A child process with one rank. Its reports are read in a thread of their own.

    Attributes:
        rank: which part of the model it computes.
    """

    def __init__(
        self, start: StartRank, on_message: Callable[[int, FromRank], None], on_end: Callable[[int, str], None]
    ) -> None:
        """Start the process. Raises OSError when it cannot be started.

        `on_message` receives the rank and each of its messages, `on_end` the rank and how the process ended, both in
        the thread that reads.
        """
        self.rank = start.rank
        self._on_message, self._on_end = on_message, on_end
        self._process = subprocess.Popen(
            [sys.executable, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        self._reader = threading.Thread(target=self._read, name=f"chairlift-rank-{start.rank}", daemon=True)
        self._reader.start()
        self.send(encode(start))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, frame: bytes) -> None:
        """Write an encoded message; the end of the process, which `on_end` reports, is not an error here.

        Raises EngineDead when the process does not read for SEND_SECONDS.
        """
        try:
            write_frame(self._input.fileno(), frame, SEND_SECONDS)
        except (EngineDead, ValueError) as error:
            if self._process.poll() is None and not self._input.closed:
                raise EngineDead(f"rank {self.rank} (process {self.pid}) cannot be sent a call: {error}") from error

    def kill(self) -> None:
        """Kill the process, without a wait for its end. From any thread."""
        self._process.kill()

    def close_input(self) -> None:
        """Let the process end, without a wait for it. May be called more than once, by the thread that sends."""
        with contextlib.suppress(OSError):
            self._input.close()

    def close(self) -> None:
        """End the process and wait for it. May be called more than once, by the thread that sends."""
        self.close_input()
        try:
            self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it; it counts as ended
                self._process.wait(EXIT_SECONDS)
        if threading.current_thread() is not self._reader:
            self._reader.join(EXIT_SECONDS)
        if not self._reader.is_alive():
            self._output.close()

    def _read(self) -> None:
        try:
            while (content := read_frame(self._output.fileno())) is not None:
                self._on_message(self.rank, decode_from_rank(content))
        except Exception as error:
            log.exception("a report of rank %d cannot be read", self.rank)
            self._on_end(self.rank, f"process {self.pid} sent a report that cannot be read: {error!r}")
            return
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._on_end(self.rank, f"process {self.pid} has closed its pipe")
            return
        self._on_end(self.rank, f"process {self.pid} {describe_end(code)}")
