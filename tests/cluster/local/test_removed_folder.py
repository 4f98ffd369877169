"""A state folder that other hands remove: nothing is killed, started twice or left without a controller."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.cluster.local import state_folder
from chairlift.cluster.local.local_replicas import LocalReplicas
from chairlift.cluster.local.process_record import RecordState
from chairlift.core.cluster_errors import ClusterFailed
from support_local_cluster import (
    SPEC,
    alive,
    config_of,
    failed,
    in_state,
    kill_fleet,
    open_replicas,
    refresh_until,
    wait_for_pids,
)
from support_process import has_ended, wait_until

Removal = Callable[[Path], None]


def remove_replicas(folder: Path) -> None:
    shutil.rmtree(folder / "replicas")
    (folder / "replicas").mkdir()


def remove_files(folder: Path) -> None:
    """As a program that removes old files and leaves the folders."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()


REMOVALS = pytest.mark.parametrize("remove", [shutil.rmtree, remove_replicas, remove_files])


@pytest.mark.share(2)
@REMOVALS
@pytest.mark.parametrize("is_adopted", [False, True])
def test_replicas_run_on_and_can_be_stopped_and_adopted(folder: Path, remove: Removal, is_adopted: bool) -> None:
    with open_replicas(folder) as replicas:
        replicas.scale(SPEC, 2, ())
        pids = wait_for_pids(folder, replicas)
        if not is_adopted:
            remove(folder)
        for _ in range(2):
            replicas.scale(SPEC, 2, ())
        assert {each.replica_id for each in alive(replicas)} == pids.keys()
    with open_replicas(folder) as replicas:
        if is_adopted:
            remove(folder)
        replicas.scale(SPEC, 2, ())
        assert {each.replica_id for each in alive(replicas)} == pids.keys()
        assert not any(has_ended(pid) for pid in pids.values())
        replicas.scale(SPEC, 0, ())
        wait_until(lambda: all(has_ended(pid) for pid in pids.values()), 20)
        refresh_until(replicas, lambda: len(in_state(replicas, RecordState.STOPPED)) == 2)


def test_the_end_of_a_replica_is_noticed_without_its_lock(folder: Path) -> None:
    with open_replicas(folder) as replicas:
        replicas.scale(SPEC, 1, ())
        (pid,) = wait_for_pids(folder, replicas).values()
        shutil.rmtree(folder)
        os.kill(pid, signal.SIGKILL)
        refresh_until(replicas, lambda: [each.exit_code for each in failed(replicas)] == [-signal.SIGKILL])


@REMOVALS
def test_a_controller_that_finds_no_record_stops_the_process(folder: Path, remove: Removal) -> None:
    with open_replicas(folder) as replicas:
        replicas.scale(SPEC, 1, ())
        ((replica_id, pid),) = wait_for_pids(folder, replicas).items()
    remove(folder)
    with open_replicas(folder) as replicas:
        wait_until(lambda: has_ended(pid), 20)
        refresh_until(replicas, lambda: not in_state(replicas, RecordState.STOPPING))
        assert [each.replica_id for each in in_state(replicas, RecordState.STOPPED)] == [replica_id]
        assert "its record was removed" in replicas.records[0].note


@REMOVALS
def test_a_second_controller_does_not_get_a_removed_folder(
    folder: Path, remove: Removal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_folder, "LOCK_SECONDS", 0.0)
    with open_replicas(folder) as first:
        remove(folder)
        second = LocalReplicas(config_of(folder))
        if remove is not remove_replicas:
            with pytest.raises(ClusterFailed, match=f"another controller, process {os.getpid()}, uses the folder"):
                second.open()
        first.refresh()
        with pytest.raises(ClusterFailed, match="another controller"):
            second.open()
    second.open()
    second.close()


def test_a_process_with_a_recycled_id_is_not_signalled(folder: Path) -> None:
    """The record names this test's process, with another time of its start."""
    with open_replicas(folder) as replicas:
        replicas.scale(SPEC, 1, ())
        wait_for_pids(folder, replicas)
        record_file = folder / "replicas" / replicas.records[0].replica_id / "record.json"
        (ticks,) = (each.start_ticks for each in replicas.records)
    kill_fleet(folder)
    text = record_file.read_text()
    (pid,) = (each.pid for each in replicas.records)
    record_file.write_text(text.replace(f'"pid": {pid}', f'"pid": {os.getpid()}'))
    record_file.with_name("lock").unlink()
    assert f'"start_ticks": {ticks}' in text
    with open_replicas(folder) as replicas:
        assert [each.pid for each in failed(replicas)] == [os.getpid()]


@pytest.mark.parametrize("is_own_child", [False, True])
def test_the_children_of_a_replica_that_ended_by_itself_are_killed(folder: Path, is_own_child: bool) -> None:
    command = ("sh", "-c", "sleep 600 & echo $!; wait", "replica")
    with open_replicas(folder, command) as replicas:
        replicas.start(SPEC, 1)
        ((replica_id, pid),) = wait_for_pids(folder, replicas).items()
        log = folder / "replicas" / replica_id / "log"
        wait_until(lambda: log.read_text().endswith("\n"), 20)
        child = int(log.read_text())
        if is_own_child:
            kill_and_check(replicas, pid, child)
    if not is_own_child:
        with open_replicas(folder) as replicas:
            kill_and_check(replicas, pid, child)


def kill_and_check(replicas: LocalReplicas, pid: int, child: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: has_ended(pid), 20)
    assert not has_ended(child)
    refresh_until(replicas, lambda: bool(failed(replicas)))
    wait_until(lambda: has_ended(child), 20)
