"""Place: the server of a soak in processes of its own, with its keys, its signals and its engine."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from chairlift.web.auth import key_line

ADMIN_KEY = "the-soak-admin"
KEYS = {"the-soak-of-alice": "alice", "the-soak-of-bob": "bob", "the-soak-of-carol": "carol"}
"""Key -> tenant."""

OPTIONS = (
    "--num-blocks", "1024", "--max-waiting-requests", "24", "--write-timeout", "3", "--body-timeout", "2",
    "--idle-timeout", "10", "--log-level", "info", "--log-file-size", "5MB", "--log-backups", "1",
)  # fmt: skip
START_SECONDS = 120.0


class Place:
    """A server that runs until it is told to leave. Its files lie in a folder of its own, temporary ones too."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self.folder = folder
        self.keys = folder / "keys.txt"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.write_keys()
        self._said = folder / "server.txt"
        self._file = self._said.open("w", encoding="utf-8")
        command = [sys.executable, "-m", "chairlift", "serve", "--port", "0", "--key-file", str(self.keys),
                   "--log-file", str(folder / "server.log"), *OPTIONS, *options]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self._file, env={**os.environ, "TMPDIR": str(self.temporary)}
        )
        self.port = 0

    def write_keys(self, *, broken: bool = False) -> None:
        """Write the file of keys, or one that is none."""
        lines = [key_line(key, tenant) for key, tenant in KEYS.items()]
        lines.append(key_line(ADMIN_KEY, "operator", admin=True))
        written = self.folder / "keys.new"
        written.write_text("this is no key file\n" if broken else "\n".join(lines) + "\n", encoding="utf-8")
        written.replace(self.keys)  # never seen half written

    def wait(self) -> None:
        """Wait until it is ready. Raises RuntimeError with what it said where it is not."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            said = self._said.read_text(encoding="utf-8")
            if (match := re.search(r"^ready after .*:(\d+)$", said, re.MULTILINE)) is not None:
                self.port = int(match[1])
                return
            time.sleep(0.05)
        raise RuntimeError(f"the server is not ready: {self._said.read_text(encoding='utf-8')}")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def children(self) -> list[int]:
        """Return the processes that it has started, those that ended and were not waited for as well."""
        found: list[int] = []
        try:
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                found += [int(pid) for pid in (task / "children").read_text(encoding="utf-8").split()]
        except OSError:
            return found
        return found

    @property
    def engine_pid(self) -> int | None:
        """The process of its engine; None while there is none."""
        return next((pid for pid in self.children() if "chairlift.engine.ipc.engine_main" in _command(pid)), None)

    def stop(self, seconds: float = 60.0) -> int:
        """Ask it to leave; returns its exit code, that of a kill where it did not."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self._file.close()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""
