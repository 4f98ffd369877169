"""ServerProcess: a server in its own process, with its key file, its signals and the process id of its engine."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from chairlift.web.auth.api_keys import key_line

ADMIN_KEY = "the-soak-admin"
KEYS = {"the-soak-of-alice": "alice", "the-soak-of-bob": "bob", "the-soak-of-carol": "carol"}
"""API key -> tenant."""

OPTIONS = (
    "--num-blocks", "1024", "--max-waiting-requests", "24", "--write-timeout", "3", "--body-timeout", "2",
    "--idle-timeout", "10", "--log-level", "info", "--log-file-size", "5MB", "--log-backups", "1",
)  # fmt: skip
START_SECONDS = 120.0
"""Longest time from the start of the process until the server is ready."""


class ServerProcess:
    """A server that runs until `stop`. All its files, also temporary ones, are in one folder."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        """Start the server's process; `wait_until_ready` sets `port`."""
        self.folder = folder
        self.key_file = folder / "keys.txt"
        self.temp_folder = folder / "tmp"
        self.temp_folder.mkdir(parents=True, exist_ok=True)
        self.write_keys()
        self._stderr_path = folder / "server.txt"
        self._stderr = self._stderr_path.open("w", encoding="utf-8")
        command = [sys.executable, "-m", "chairlift", "serve", "--port", "0", "--key-file", str(self.key_file),
                   "--log-file", str(folder / "server.log"), *OPTIONS, *options]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self._stderr,
            env={**os.environ, "TMPDIR": str(self.temp_folder)},
        )  # fmt: skip
        self.port = 0

    def write_keys(self, *, broken: bool = False) -> None:
        """Write the key file, or an invalid one."""
        lines = [key_line(key, tenant) for key, tenant in KEYS.items()]
        lines.append(key_line(ADMIN_KEY, "operator", admin=True))
        new_file = self.folder / "keys.new"
        new_file.write_text("this is no key file\n" if broken else "\n".join(lines) + "\n", encoding="utf-8")
        new_file.replace(self.key_file)  # atomic: the server never reads a partial file

    def wait_until_ready(self) -> None:
        """Wait until the server is ready. Raises RuntimeError with its error output when it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            output = self._stderr_path.read_text(encoding="utf-8")
            if (match := re.search(r"^ready after .*:(\d+)$", output, re.MULTILINE)) is not None:
                self.port = int(match[1])
                return
            time.sleep(0.05)
        raise RuntimeError(f"the server is not ready: {self._stderr_path.read_text(encoding='utf-8')}")

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's process."""
        self.process.send_signal(number)

    def child_pids(self) -> list[int]:
        """Return the process ids of the server's children, zombies included."""
        result: list[int] = []
        try:
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                result += [int(pid) for pid in (task / "children").read_text(encoding="utf-8").split()]
        except OSError:
            return result
        return result

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine; None while there is no engine process."""
        return next((pid for pid in self.child_pids() if "chairlift.engine.ipc.engine_main" in _command(pid)), None)

    def stop(self, timeout_seconds: float = 60.0) -> int:
        """Send SIGTERM, and SIGKILL after the timeout; returns the exit code."""
        if self.process.poll() is None:
            self.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self._stderr.close()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""
