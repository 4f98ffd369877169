"""Controllers of a local fleet that are killed, for tests: `python local_controller_main.py FOLDER MARK`.

Each line of standard input is one controller, a fork of this process: {"action": i, "line": n} kills it with SIGKILL
before the n-th line of code that action i runs in the local cluster, subprocess and shutil; {"after": seconds} kills it
after a time, also inside of a system call; {} lets it finish. Its output: "hurt ID" before it kills a replica, "lines
[...]" with the lines of each action when it finishes or "failed ERROR", and then "ended".
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.local import replica_exec_main
from chairlift.cluster.local.local_cluster import LocalCluster
from support_local_cluster import config_of

STUBBORN = ("sh", "-c", '[ "$5" = ignore-sigterm ] && trap "" TERM; exec sleep 600', "replica")
TRACED = (str(Path(replica_exec_main.__file__).parent), subprocess.__file__, shutil.__file__)
ACTING = (1, 3, 4, 6, 8, 10, 12)
"""Actions that start or stop replicas; the others list them."""

FIELDS: dict[str, Any] = {
    "command": STUBBORN, "stop_timeout": 0.05, "first_restart": 0.0, "max_failures": 10**6, "keep_seconds": 0.0,
    "num_failed_kept": 0,
}  # fmt: skip


def specs(mark: str) -> tuple[ReplicaSpec, ReplicaSpec]:
    environ = {"TEST_FLEET_MARK": mark}
    return ReplicaSpec(arguments=("ignore-sigterm",), environ=environ), ReplicaSpec(environ=environ)


def emit(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # at once, and whole


class LineCounter:
    """Counts the lines of code of the current action, and kills this process before one of them."""

    def __init__(self, action: int, line: int) -> None:
        self._action, self._line = action, line
        self.counts: list[int] = []

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        if event == "line" and self.counts:
            self.counts[-1] += 1
            if (len(self.counts) - 1, self.counts[-1]) == (self._action, self._line):
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


class Scenario:
    """What a controller does: start, scale, stop, restart and update replicas."""

    def __init__(self, cluster: LocalCluster, folder: Path, mark: str) -> None:
        self._cluster, self._folder = cluster, folder
        self._first, self._second = specs(mark)

    def actions(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        return (
            self._list, lambda: self._scale(self._first, 3), self._wait, lambda: self._scale(self._first, 2, remove=1),
            lambda: self._cluster.start(self._second, 1), self._wait, self._stop_one, self._hurt_one,
            lambda: self._scale(self._first, 3), self._wait, self._update, self._wait,
            lambda: self._scale(self._second, 1), self._wait,
        )  # fmt: skip

    async def _running(self) -> list[str]:
        return [each.replica_id for each in await self._cluster.list() if each.state is PlacementState.RUNNING]

    async def _list(self) -> None:
        await self._cluster.list()

    async def _scale(self, spec: ReplicaSpec, target: int, *, remove: int = 0) -> None:
        names = (await self._running())[:remove] if remove else []
        await self._cluster.scale(spec, target, remove=names)

    async def _stop_one(self) -> None:
        await self._cluster.stop((await self._running())[-1:])

    async def _hurt_one(self) -> None:
        for replica_id in (await self._running())[:1]:
            pid = int((self._folder / "replicas" / replica_id / "pid").read_text())
            emit(f"hurt {replica_id}")
            os.kill(pid, signal.SIGKILL)

    async def _update(self) -> None:
        version = self._first.version
        old = [each.replica_id for each in await self._cluster.list() if each.version == version]
        await self._cluster.scale(self._second, 2, remove=old)

    async def _wait(self) -> None:
        """Wait until no replica starts or stops."""
        unsettled = {PlacementState.PENDING, PlacementState.STOPPING}
        async with asyncio.timeout(20):
            while any(each.state in unsettled for each in await self._cluster.list()):
                await asyncio.sleep(0.02)


async def control(folder: Path, mark: str, counter: LineCounter) -> None:
    async with LocalCluster(config_of(folder, **FIELDS)) as cluster:
        for action in Scenario(cluster, folder, mark).actions():
            counter.counts.append(0)
            await action()


def main(folder: Path, mark: str) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        counter = LineCounter(order.get("action", -1), order.get("line", -1))
        child = os.fork()
        if not child:
            if "after" not in order:
                threading.settrace(counter.trace)
            try:
                asyncio.run(control(folder, mark, counter))
                emit(f"lines {json.dumps(counter.counts)}")
            except BaseException as error:
                emit(f"failed {error!r}")
            os._exit(0)
        if "after" in order:
            time.sleep(order["after"])
            os.kill(child, signal.SIGKILL)  # it is not reaped yet, so the id is its own
        os.waitpid(child, 0)
        emit("ended")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
