"""kill -9 of the controller at any point: the next one adopts exactly what runs, and has exactly its target."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift.cluster.local.local_replicas import LocalReplicas
from chairlift.cluster.local.process_record import RecordState
from chairlift.cluster.local.state_folder import StateFolder
from local_controller_main import ACTING, FIELDS, specs
from support_local_cluster import alive, config_of, failed, in_state, marked_processes
from support_process import TESTS, child_environment, wait_until

MARK = f"kills-{os.getpid()}"


class Controllers:
    """A process that runs controllers one after another, and what the current one has reported."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, TESTS / "local_controller_main.py", folder, MARK], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=child_environment(),
        )  # fmt: skip

    def run(self, **order: Any) -> tuple[set[str], list[int]]:
        """Run a controller; return the replicas that it killed, and the lines of its actions if it finished."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        hurt, lines = set(), []
        for text in self._process.stdout:
            kind, _, rest = text.strip().partition(" ")
            if kind == "ended":
                return hurt, lines
            assert kind != "failed", rest
            if kind == "hurt":
                hurt.add(rest)
            else:
                lines = json.loads(rest)
        raise AssertionError("the process of the controllers has ended")

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def controllers(folder: Path) -> Iterator[Controllers]:
    each = Controllers(folder)
    yield each
    each.close()
    for pid in marked_processes(MARK):
        os.kill(pid, signal.SIGKILL)


class Fleet:
    """The controller after the killed one."""

    def __init__(self, folder: Path, replicas: LocalReplicas) -> None:
        self.state, self.replicas = StateFolder(folder), replicas

    def is_settled(self) -> bool:
        """Whether nothing starts or stops, and the processes are those of the records: none more, none less."""
        self.replicas.refresh()
        pids = [self.state.pid(each.replica_id) for each in alive(self.replicas)]
        return not in_state(self.replicas, RecordState.STOPPING) and set(pids) == marked_processes(MARK)

    def check(self, rng: random.Random, hurt: set[str]) -> None:
        wait_until(self.is_settled, 20)
        assert {each.replica_id for each in failed(self.replicas)} <= hurt  # no kill of a controller ends a replica
        target = rng.randrange(5)
        self.replicas.scale(rng.choice(specs(MARK)), target, ())
        assert len(alive(self.replicas)) == target
        wait_until(self.is_settled, 20)
        ports = [each.port for each in alive(self.replicas)]
        assert len(ports) == target == len(set(ports))


def kill_rounds(folder: Path, controllers: Controllers, num_rounds: int) -> dict[str, int]:
    """Kill as many controllers at seeded points; return how many were killed, and how."""
    rng, done = random.Random(30), {"line": 0, "time": 0, "finished": 0}  # a controller may finish before its line
    began = time.monotonic()
    _, counts = controllers.run()
    seconds = time.monotonic() - began
    assert len(counts) > 10 and min(counts) > 10
    while done["line"] + done["time"] < num_rounds and done["finished"] < num_rounds:
        action = rng.choice(ACTING) if rng.random() < 0.8 else rng.randrange(len(counts))
        order: dict[str, Any] = {"action": action, "line": rng.randint(1, counts[action])}
        if rng.random() < 0.25:
            order = {"after": rng.uniform(0, seconds)}
        hurt, lines = controllers.run(**order)
        done["finished" if lines else "time" if "after" in order else "line"] += 1
        replicas = LocalReplicas(config_of(folder, **FIELDS))
        replicas.open()
        try:
            Fleet(folder, replicas).check(rng, hurt)
        except BaseException as error:
            error.add_note(f"rounds {done}: {order}, hurt {hurt}, records {replicas.records}")
            raise
        finally:
            replicas.close()
    return done


def test_the_next_controller_adopts_what_runs_wherever_the_last_one_was_killed(
    folder: Path, controllers: Controllers
) -> None:
    done = kill_rounds(folder, controllers, 10)
    assert done["line"] + done["time"] == 10


@pytest.mark.full
def test_the_next_controller_adopts_what_runs_in_200_rounds(folder: Path, controllers: Controllers) -> None:
    done = kill_rounds(folder, controllers, 200)
    assert done["line"] + done["time"] == 200, done
