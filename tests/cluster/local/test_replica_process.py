"""Processes of replicas: sessions of their own, signals that meet no other process, exit codes, nothing left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from chairlift.cluster.local.replica_process import reap, signal_process, spawn
from chairlift.cluster.local.state_folder import StateFolder
from support_process import has_ended, wait_until


def start(folder: Path, *command: str, cpus: Sequence[int] = ()) -> tuple[StateFolder, str, int]:
    state = StateFolder(folder)
    state.open()
    replica_id = state.create()
    lock = state.take_lock(replica_id)
    pid = spawn(state.path(replica_id), lock, command, {**os.environ, "SECRET": "s3cret"}, cpus)
    os.close(lock)
    return state, replica_id, pid


def log_of(state: StateFolder, replica_id: str) -> str:
    return (state.path(replica_id) / "log").read_text()


def finish(state: StateFolder, replica_id: str, pid: int) -> int | None:
    wait_until(lambda: not state.is_locked(replica_id), 20)
    is_gone, exit_code = reap(pid)
    assert is_gone
    state.close()
    return exit_code


def test_a_replica_has_its_own_session_and_a_private_log_and_no_secret_in_its_arguments(folder: Path) -> None:
    state, replica_id, pid = start(folder, "sh", "-c", "echo $SECRET; echo err >&2; exec sleep 600")
    assert state.is_locked(replica_id)
    wait_until(lambda: log_of(state, replica_id) == "s3cret\nerr\n", 20)
    assert state.pid(replica_id) == pid == os.getsid(pid)
    assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert (state.path(replica_id) / "log").stat().st_mode & 0o777 == 0o600
    assert signal_process(pid, signal.SIGTERM, lambda: state.is_locked(replica_id))
    assert finish(state, replica_id, pid) == -signal.SIGTERM


def test_no_descriptor_but_the_lock_is_inherited(folder: Path) -> None:
    kept = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        state, replica_id, pid = start(folder, "sh", "-c", "ls -l /proc/$$/fd; exit 7")
        assert finish(state, replica_id, pid) == 7
    finally:
        os.close(kept)
    targets = [line.split(" -> ")[1] for line in log_of(state, replica_id).splitlines() if " -> " in line]
    names = [Path(target).name for target in targets]
    assert sorted(names) == ["lock", "log", "log", "null"]


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_a_process_without_the_lock_gets_no_signal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, has_descriptors: bool
) -> None:
    """Its process id was used again: the process that has it now is another one."""
    if not has_descriptors:
        monkeypatch.delattr(os, "pidfd_open")
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            assert not signal_process(other.pid, number, lambda: False)
        assert other.poll() is None
        assert signal_process(other.pid, signal.SIGKILL, lambda: True)
        assert other.wait(20) == -signal.SIGKILL
        assert signal_process(other.pid, signal.SIGKILL, lambda: True)  # a process that is gone is no error
    finally:
        other.kill()
        other.wait()


def test_the_children_of_a_killed_replica_are_killed(folder: Path) -> None:
    state, replica_id, pid = start(folder, "sh", "-c", "sleep 600 & echo $!; wait")
    wait_until(lambda: log_of(state, replica_id).endswith("\n"), 20)
    child = int(log_of(state, replica_id))
    assert signal_process(pid, signal.SIGKILL, lambda: state.is_locked(replica_id))
    assert finish(state, replica_id, pid) == -signal.SIGKILL
    wait_until(lambda: has_ended(child), 20)


def test_the_children_of_a_replica_that_ended_by_itself_are_killed(folder: Path) -> None:
    """They do not hold its lock, so they would run on unnoticed."""
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid); sys.exit(4)"
    state, replica_id, pid = start(folder, sys.executable, "-S", "-c", code)
    assert finish(state, replica_id, pid) == 4
    child = int(log_of(state, replica_id).split()[-1])
    wait_until(lambda: has_ended(child), 20)


def test_a_child_that_other_code_reaped_has_no_exit_code(folder: Path) -> None:
    state, _, pid = start(folder, "true")
    os.waitpid(pid, 0)
    assert reap(pid) == (True, None)
    state.close()


def test_a_child_that_still_runs_is_not_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may hold a process that has closed its files, for example in a driver."""
    state, _, pid = start(folder, "sleep", "600")
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda *_: None)
        assert reap(pid) == (False, None)
    assert reap(pid) == (True, -signal.SIGKILL)
    state.close()
