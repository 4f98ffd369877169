"""RunningReplica: a replica in its own processes, with the API process and the engine pinned to different cores."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chairlift.bench.offline.subprocess_run import environ_with
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.server_address import Address

ADMIN_KEY = "the-api-overhead-admin"
START_SECONDS = 60.0
CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class RunningReplica:
    """A replica that is ready for requests.

    Attributes:
        port: TCP port on the loopback interface.
        api_pid: process id of the API server.
        engine_pid: process id of the engine.
    """

    port: int
    api_pid: int
    engine_pid: int

    def client(self, key: str = "") -> Client:
        """Return a client of the replica. The caller closes it."""
        return Client(Address.of(f"http://127.0.0.1:{self.port}"), key)

    def cpu_seconds(self) -> float:
        """Return the CPU time that the API process has used so far."""
        fields = Path(f"/proc/{self.api_pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_SECOND


@contextmanager
def running_replica(seconds_per_step: float) -> Iterator[RunningReplica]:
    """Start a replica: API server on the first core, engine and this process on the second, if there is one."""
    with running_server(["api_overhead.replica", str(seconds_per_step)]) as replica:
        _pin(replica.api_pid, min(os.sched_getaffinity(0)))
        with on_one_core(replica.engine_pid):
            yield replica


@contextmanager
def running_server(module: Sequence[str]) -> Iterator[RunningReplica]:
    """Start a server, a module with its arguments, and wait until it is ready. Raises RuntimeError if it ends first."""
    command = [sys.executable, "-m", *module]
    environ = {**environ_with(Path(__file__).parents[1]), "CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
    try:
        port = _wait_for_port(process)
        threading.Thread(target=_discard, args=(process.stderr,), daemon=True).start()
        yield RunningReplica(port, process.pid, _engine_pid_below(process.pid))
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _discard(lines: Iterable[str]) -> None:
    """Read the messages of a server, which would wait if nothing did."""
    for _ in lines:
        pass


@contextmanager
def on_one_core(engine_pid: int) -> Iterator[None]:
    """Pin an engine and this process to the second core, if there is one."""
    before = os.sched_getaffinity(0)
    second = sorted(before)[:2][-1]
    _pin(engine_pid, second)
    os.sched_setaffinity(0, {second})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _pin(pid: int, core: int) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def _wait_for_port(process: "subprocess.Popen[str]") -> int:
    """Read the replica's messages until it is ready, and return its port. Raises RuntimeError if it ends first."""
    assert process.stderr is not None, "standard error is a pipe"
    for line in process.stderr:
        if (match := re.match(r"ready after .*:(\d+)$", line)) is not None:
            return int(match[1])
    raise RuntimeError("the replica process ended before it was ready")


def _engine_pid_below(pid: int) -> int:
    """Return the id of the engine process among the children of a process. Raises RuntimeError after START_SECONDS."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text(encoding="utf-8").split():
                if b"engine.ipc.engine_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    raise RuntimeError(f"the replica process has no engine process after {START_SECONDS:g} s")
