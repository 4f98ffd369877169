"""ServerProcess: a server that a tool starts in a process of its own, with its log in a file.

`chairlift serve`, `router` and `fleet` end their start with the line "ready after 1.2 s: URL". A server that says
nothing of that kind is awaited by its tool.
"""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from server_process.process_usage import child_pids

READY = re.compile(r"^ready after .*(http://\S+)$", re.MULTILINE)
START_SECONDS = 120.0
"""Default of the longest time from the start of a process until it serves requests."""

STOP_SECONDS = 60.0
POLL_SECONDS = 0.02
MAX_SHOWN_CHARS = 3000
"""Characters of the log's end that an error shows."""

ENGINE_MODULE = "chairlift.engine.ipc.engine_main"


class ServerProcess:
    """A server's process; as a context manager it is ready inside and stopped behind.

    Attributes:
        process: the process.
        log_file: the file that has its output.
        url: address of the server, "" until it is ready.
    """

    def __init__(
        self, command: Sequence[str], log_file: Path, *, environ: Mapping[str, str] | None = None,
        folder: Path | None = None, start_seconds: float = START_SECONDS,
    ) -> None:  # fmt: skip
        """Start the process; its output is appended to `log_file`.

        Args:
            command: its command line.
            log_file: the file for its output; `log` returns only what this process has written.
            environ: environment variables beside those of this process.
            folder: its working folder, by default that of this process.
            start_seconds: longest time until it is ready.
        """
        self.log_file = log_file
        self.url = ""
        self._log_position = log_file.stat().st_size if log_file.exists() else 0
        self._deadline = time.monotonic() + start_seconds
        with log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **(environ or {})}, cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip

    def __enter__(self) -> Self:
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self.process.pid

    @property
    def port(self) -> int:
        """TCP port of the server when it is ready."""
        return int(self.url.rpartition(":")[2])

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine; None while there is no engine process."""
        return next((pid for pid in self.child_pids() if ENGINE_MODULE in _command_line(pid)), None)

    def log(self) -> str:
        """Return the output since the process's start."""
        with self.log_file.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._log_position)
            return log.read()

    def is_ready(self) -> bool:
        """Return whether the server serves requests; then `url` is set.

        Raises RuntimeError with the end of the log if the process has ended or takes too long.
        """
        has_ended = self.process.poll() is not None
        log = self.log()
        if (match := READY.search(log)) is not None and not has_ended:
            self.url = match[1]
            return True
        if has_ended or time.monotonic() > self._deadline:
            raise RuntimeError(f"the server did not become ready:\n{log[-MAX_SHOWN_CHARS:]}")
        return False

    def wait_until_ready(self) -> None:
        """Wait until the server serves requests. Raises RuntimeError as `is_ready` does."""
        while not self.is_ready():
            time.sleep(POLL_SECONDS)

    async def ready(self) -> None:
        """Wait in an event loop until the server serves requests. Raises RuntimeError as `is_ready` does."""
        while not self.is_ready():
            await asyncio.sleep(POLL_SECONDS)

    def child_pids(self) -> list[int]:
        """Return the process ids of the server's children, zombies included."""
        return child_pids(self.pid)

    def send_signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> int:
        """Send SIGTERM, and SIGKILL after the timeout; returns the exit code."""
        self.process.terminate()
        try:
            return self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    async def kill(self) -> None:
        """Kill the process at once and wait for its end."""
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""
