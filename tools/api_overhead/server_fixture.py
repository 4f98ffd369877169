"""Place: a replica in processes of its own, each on the core that it is given."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chairlift.bench.offline.subprocess_run import environ_with
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.server_address import Address

ADMIN_KEY = "the-api-overhead-admin"
START_SECONDS = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Place:
    """A replica that runs.

    Attributes:
        port: where it listens on the loopback interface.
        api: process id of its API.
        engine: process id of its engine.
    """

    port: int
    api: int
    engine: int

    def client(self, key: str = "") -> Client:
        """Return a client of it; whoever asks for one closes it."""
        return Client(Address.of(f"http://127.0.0.1:{self.port}"), key)

    def seconds(self) -> float:
        """Return the processor time of its API process so far."""
        fields = Path(f"/proc/{self.api}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def replica(seconds_per_step: float) -> Iterator[Place]:
    """Start a replica; its API has the first core, its engine and this process the second, where there are two."""
    command = [sys.executable, "-m", "api_overhead.replica", str(seconds_per_step)]
    environ = {**environ_with(Path(__file__).parents[1]), "CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
    try:
        port = _ready(process)
        place = Place(port, process.pid, _child(process.pid))
        _put(place.api, min(os.sched_getaffinity(0)))
        with on_one_core(place.engine):
            yield place
    finally:
        process.terminate()
        process.wait(START_SECONDS)


@contextmanager
def on_one_core(engine: int) -> Iterator[None]:
    """Put an engine and this process on the second core, where there are two."""
    mine = os.sched_getaffinity(0)
    second = sorted(mine)[:2][-1]
    _put(engine, second)
    os.sched_setaffinity(0, {second})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _put(pid: int, core: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def _ready(process: "subprocess.Popen[str]") -> int:
    assert process.stderr is not None, "it is a pipe"
    for line in process.stderr:
        if (match := re.match(r"ready after .*:(\d+)$", line)) is not None:
            return int(match[1])
    raise RuntimeError("the replica did not start")


def _child(pid: int) -> int:
    """Return the engine's process: the child that is one."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="utf-8").split():
                if b"engine.ipc.engine_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    raise RuntimeError("the replica has no engine")
