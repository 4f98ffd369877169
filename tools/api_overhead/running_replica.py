"""RunningReplica: a replica in its own processes, with the API process and the engine pinned to different cores."""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chairlift.bench.offline.subprocess_run import environ_with
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.server_address import Address
from server_process.server_process import ServerProcess

ADMIN_KEY = "the-api-overhead-admin"
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
    with running_server(["api_overhead.fake_engine_replica", str(seconds_per_step)]) as replica:
        _pin(replica.api_pid, min(os.sched_getaffinity(0)))
        with on_one_core(replica.engine_pid):
            yield replica


@contextmanager
def running_server(module: Sequence[str]) -> Iterator[RunningReplica]:
    """Start a server, a module with its arguments, and wait until it is ready. Raises RuntimeError if it ends first."""
    command = [sys.executable, "-m", *module]
    environ = {**environ_with(Path(__file__).parents[1]), "CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(command, Path(folder) / "server.log", environ=environ) as server,
    ):
        if (engine_pid := server.engine_pid) is None:
            raise RuntimeError("the replica process has no engine process")
        yield RunningReplica(server.port, server.pid, engine_pid)


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
