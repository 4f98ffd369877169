"""ProcessClient in a fork of its process: every call raises or returns at once, and the engine process lives on."""

import atexit
import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import EngineDead
from chairlift.engine.client.process import ProcessClient
from support_os_fork import run_in_fork
from support_process import TIMEOUT_SECONDS, can_generate, engine, fake_spec, make_request, pid_of

pytestmark = pytest.mark.usefixtures("children_import_tests")

RAISING: dict[str, Callable[[ProcessClient], Any]] = {
    "submit": lambda client: client.submit(make_request("b"), print),
    "watch_steps": lambda client: client.watch_steps(print),
    "scheduler_state": lambda client: client.scheduler_state(),
    "cache_state": lambda client: client.cache_state(),
    "batch_snapshot": lambda client: client.batch_snapshot(),
    "check_integrity": lambda client: client.check_integrity(),
    "flush_cache": lambda client: client.flush_cache(),
    "warmup": lambda client: client.warmup(),
}
QUIET: dict[str, Callable[[ProcessClient], Any]] = {
    "abort": lambda client: client.abort("a"),
    "close": lambda client: client.close(),
    "load": lambda client: str(client.load().state),
    "state": lambda client: str(client.state),
}
RESULTS = {"abort": None, "close": None, "load": "dead", "state": "dead"}


@pytest.mark.parametrize("is_locked", [False, True])
def test_every_call_in_a_fork_ends_at_once_also_where_the_fork_has_inherited_held_locks(is_locked: bool) -> None:
    with engine(fake_spec()) as client:

        def calls() -> dict[str, Any]:
            results: dict[str, Any] = {}
            for name, call in (RAISING | QUIET).items():
                try:
                    results[name] = call(client)
                except EngineDead as error:
                    results[name] = error.message[:30]
            return results

        if is_locked:
            with client._open._lock, client._pending_calls._lock:
                results = run_in_fork(calls)
        else:
            results = run_in_fork(calls)
        assert results == dict.fromkeys(RAISING, "this process was forked from p") | RESULTS
        assert can_generate(client) and client.restarts == 0


def test_finalizers_and_exit_functions_of_a_fork_leave_the_engine_alone() -> None:
    # In a process of its own: exit functions of other libraries need not end in a fork.
    command = [sys.executable, "-c", "import test_process_fork; test_process_fork.end_a_fork()"]
    subprocess.run(command, cwd=Path(__file__).parent, check=True, timeout=TIMEOUT_SECONDS)


def end_a_fork() -> None:
    """Run what runs at the end of a process in a fork of this one."""
    with engine(fake_spec()) as client:
        pid = pid_of(client)

        def end() -> str:
            client.__dict__.clear()
            gc.collect()
            atexit._run_exitfuncs()
            return "ended"

        assert run_in_fork(end) == "ended"
        assert can_generate(client) and client.restarts == 0 and pid_of(client) == pid
