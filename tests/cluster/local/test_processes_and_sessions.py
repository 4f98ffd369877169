"""process_identity: the same process is known by its start, children by their environment, removed files by /proc."""

import os
import signal
import subprocess
from pathlib import Path

from chairlift.cluster.local.processes_and_sessions import (
    REPLICA_VARIABLE,
    holders_of_removed,
    is_same_process,
    is_session_leader,
    kill_session,
    start_ticks,
)
from support_process import has_ended, wait_until


def test_a_process_is_the_same_as_long_as_it_runs() -> None:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    ticks = start_ticks(process.pid)
    assert ticks > start_ticks(os.getpid()) > 0
    assert is_same_process(process.pid, ticks) and not is_same_process(process.pid, ticks + 1)
    assert not is_same_process(process.pid, 0) and is_session_leader(process.pid)
    process.kill()
    wait_until(lambda: start_ticks(process.pid) == 0, 20)  # also before it is reaped
    process.wait()
    assert not is_same_process(process.pid, ticks) and not is_session_leader(process.pid)


def test_only_the_replicas_own_children_in_its_session_are_killed() -> None:
    environ = {**os.environ, REPLICA_VARIABLE: "r-1"}
    leader = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; env -i sleep 600 & echo $!; setsid sleep 600 & echo $!; wait"],
        env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert leader.stdout is not None
    child, without_variable, of_another_session = (int(leader.stdout.readline()) for _ in range(3))
    wait_until(lambda: is_session_leader(of_another_session), 20)
    wait_until(lambda: b"env" not in Path(f"/proc/{without_variable}/cmdline").read_bytes(), 20)
    leader.kill()
    leader.wait()
    assert kill_session(leader.pid, "r-2") == 0
    assert kill_session(leader.pid, "r-1") == 1
    wait_until(lambda: has_ended(child), 20)
    for pid in (without_variable, of_another_session):
        assert not has_ended(pid)
        os.kill(pid, signal.SIGKILL)


def test_a_removed_file_that_is_open_is_found(tmp_path: Path) -> None:
    for name in ("a/lock", "b/lock"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    with (tmp_path / "a" / "lock").open():
        assert list(holders_of_removed(tmp_path)) == []
        (tmp_path / "a" / "lock").unlink()
        assert list(holders_of_removed(tmp_path)) == [(os.getpid(), tmp_path / "a" / "lock")]
        assert list(holders_of_removed(tmp_path / "b")) == []
    assert list(holders_of_removed(tmp_path)) == []
