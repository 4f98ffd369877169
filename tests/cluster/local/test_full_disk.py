"""Local replicas on a full disk: nothing is started or left behind, and ends and stops are noted and written later."""

import errno
import os
import signal
from pathlib import Path

import pytest

from chairlift.cluster.local import state_folder
from chairlift.cluster.local.local_replicas import LocalReplicas
from chairlift.cluster.local.process_record import RecordState
from chairlift.cluster.local.state_folder import StateFolder
from support_local_cluster import SPEC, config_of, open_replicas, refresh_until, wait_for_pids


def fill_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_start_on_a_full_disk_fails_and_leaves_no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_replicas(folder) as replicas:
        with monkeypatch.context() as patch:
            patch.setattr(state_folder, "write_private", fill_disk)
            for _ in range(2):
                with pytest.raises(OSError, match="No space left"):
                    replicas.scale(SPEC, 1, ())
        assert replicas.records == [] and list((folder / "replicas").iterdir()) == []


def test_ends_and_stops_on_a_full_disk_are_noted_and_written_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_replicas(folder) as replicas:
        replicas.scale(SPEC, 2, ())
        pids = wait_for_pids(folder, replicas)
        ended, stopped = pids
        with monkeypatch.context() as patch:
            patch.setattr(state_folder, "write_private", fill_disk)
            os.kill(pids[ended], signal.SIGKILL)
            replicas.stop([stopped])
            refresh_until(replicas, lambda: not any(each.may_run for each in replicas.records))
        replicas.refresh()
        states = {name: record for name, record in StateFolder(folder).records() if record is not None}
        assert (states[ended].state, states[ended].exit_code) == (RecordState.FAILED, -signal.SIGKILL)
        assert states[stopped].state is RecordState.STOPPED


def test_a_failed_open_leaves_the_folder_unlocked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_folder, "LOCK_SECONDS", 0.0)
    num_open = len(os.listdir("/proc/self/fd"))
    replicas = LocalReplicas(config_of(folder))
    with monkeypatch.context() as patch:
        patch.setattr(LocalReplicas, "refresh", fill_disk)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                replicas.open()
    assert len(os.listdir("/proc/self/fd")) == num_open
    replicas.open()
    replicas.close()
