"""Fleets of small processes for tests of the local cluster: `sh` that sleeps, fails or ignores SIGTERM."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.local import replica_exec_main
from chairlift.cluster.local.local_config import LocalConfig
from chairlift.cluster.local.local_replicas import LocalReplicas
from chairlift.cluster.local.process_record import ProcessRecord, RecordState
from chairlift.cluster.local.state_folder import StateFolder
from support_process import wait_until

SLEEP = ("sh", "-c", "exec sleep 600", "replica")
IGNORE_SIGTERM = ("sh", "-c", "trap '' TERM; echo ready; exec sleep 600", "replica")
FAIL = ("sh", "-c", "echo loading; echo the model is broken >&2; exit 3", "replica")
REPLICA_MAIN = Path(__file__).parent / "replica_main.py"
FAKE_SERVER = (
    "sh", "-c", 'exec "$TEST_PYTHON" "$TEST_REPLICA" "$(printf %s "$TEST_OPTIONS" | sed "s/PORT/$4/")"', "replica",
)  # fmt: skip
"""A whole `chairlift serve` over a fake engine; its arguments are --host HOST --port PORT."""

MARK = "TEST_FLEET_MARK"
SPEC = ReplicaSpec(model="m")


class WallTime:
    """Time of day that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def fake_server_environ(fake: dict[str, Any] | None = None) -> dict[str, str]:
    options = {"fake": {"windows": [None], **(fake or {})}}
    return {
        "TEST_PYTHON": sys.executable,
        "TEST_REPLICA": str(REPLICA_MAIN),
        "TEST_OPTIONS": json.dumps(options)[:-1] + ', "port": PORT}',
    }


def config_of(folder: Path, command: tuple[str, ...] = SLEEP, **fields: Any) -> LocalConfig:
    return LocalConfig(folder=folder, command=command, **fields)


@contextmanager
def open_replicas(
    folder: Path,
    command: tuple[str, ...] = SLEEP,
    wall_time: Callable[[], float] | None = None,
    monotonic: Callable[[], float] | None = None,
    **fields: Any,
) -> Iterator[LocalReplicas]:
    """Open a fleet; its processes run on."""
    wall_time = wall_time or WallTime()
    replicas = LocalReplicas(config_of(folder, command, **fields), wall_time, monotonic or wall_time)
    replicas.open()
    try:
        yield replicas
    finally:
        replicas.close()


def kill_fleet(folder: Path) -> None:
    """Kill all processes of a fleet, also those whose process id has not been noted yet."""
    state = StateFolder(folder)

    def is_killed(replica_id: str) -> bool:
        if not state.is_locked(replica_id):
            return True
        if (pid := state.pid(replica_id)) is not None:
            os.killpg(pid, signal.SIGKILL)
        return False

    for path in (folder / "replicas").glob("*"):
        wait_until(lambda path=path: is_killed(path.name), 20)  # type: ignore[misc]


def refresh_until(replicas: LocalReplicas, condition: Callable[[], bool]) -> None:
    def is_true() -> bool:
        replicas.refresh()
        return condition()

    wait_until(is_true, 20)


def in_state(replicas: LocalReplicas, *states: RecordState) -> list[ProcessRecord]:
    return [each for each in replicas.records if each.state in states]


def alive(replicas: LocalReplicas) -> list[ProcessRecord]:
    return in_state(replicas, RecordState.ALIVE)


def failed(replicas: LocalReplicas) -> list[ProcessRecord]:
    return in_state(replicas, RecordState.FAILED)


def wait_for_pids(folder: Path, replicas: LocalReplicas) -> dict[str, int]:
    """Wait until each replica's script has noted its process id and has become the command; return the ids."""
    state = StateFolder(folder)
    ids = [each.replica_id for each in replicas.records if each.may_run]
    pids: dict[str, int] = {}

    def is_started(replica_id: str) -> bool:
        pid = state.pid(replica_id)
        if pid is None or Path(replica_exec_main.__file__).name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return False
        pids[replica_id] = pid
        return True

    wait_until(lambda: all(is_started(each) for each in ids), 20)
    return pids


def marked_processes(mark: str) -> set[int]:
    """Return the processes that run with MARK=mark in their environment."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.add(int(path.name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def opened(path: Path) -> StateFolder:
    folder = StateFolder(path)
    folder.open()
    return folder
