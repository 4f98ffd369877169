"""Redis servers and Sentinels for tests: real processes on free ports, with their data in a temporary folder."""

import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from support_services_processes import free_port, require_service

START_SECONDS = 20.0
HOST = "127.0.0.1"


def raw_command(port: int, *words: str) -> str:
    """Send one command without any library and return the first bytes of the reply; "" if there is none."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            parts = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
            connection.sendall(f"*{len(words)}\r\n{parts}".encode())
            return connection.recv(65536).decode(errors="replace")
    except OSError:
        return ""


class RedisServer:
    """One redis-server process, without a snapshot of its data on disk unless `is_durable`."""

    def __init__(self, folder: Path, *options: str, is_durable: bool = False, program: str = "redis-server") -> None:
        self.folder, self.port = folder, free_port()
        self.options = [*options, "--appendonly", "yes", "--appendfsync", "always"] if is_durable else [*options]
        self._program = require_service(program)
        folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> "RedisServer":
        """Start the process and wait until it replies."""
        self._process = self._spawn()
        deadline = time.monotonic() + START_SECONDS
        while not raw_command(self.port, "PING"):
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, f"{self._program} did not start"
            time.sleep(0.005)
        return self

    def _spawn(self) -> "subprocess.Popen[bytes]":
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self._program, "--port", str(self.port), "--bind", HOST, "--dir", str(self.folder), "--save", "",
                 *self.options],
                stdout=log, stderr=log,
            )  # fmt: skip

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process as kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def stop(self) -> None:
        """End the process, also one that is suspended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
        self.kill()


class SentinelServer(RedisServer):
    """One redis-sentinel process that promotes the replica of `master` half a second after the master stopped."""

    def __init__(self, folder: Path, master: RedisServer, name: str = "fleet", options: Sequence[str] = ()) -> None:
        super().__init__(folder, program="redis-sentinel")
        lines = [
            f"sentinel monitor {name} {HOST} {master.port} 1",
            f"sentinel down-after-milliseconds {name} 500",
            f"sentinel failover-timeout {name} 2000",
            *options,
        ]
        (folder / "sentinel.conf").write_text("\n".join([f"port {self.port}", f"bind {HOST}", f"dir {folder}", *lines]))

    def _spawn(self) -> "subprocess.Popen[bytes]":
        with (self.folder / "log").open("ab") as log:
            command = [self._program, str(self.folder / "sentinel.conf")]
            return subprocess.Popen(command, stdout=log, stderr=log)
