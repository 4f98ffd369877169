"""Folders of replicas: removed after a while, with their lines read before; logs have a bound."""

from pathlib import Path

from chairlift.cluster.local.process_record import ProcessRecord, RecordState
from support_local_cluster import (
    FAIL,
    SPEC,
    WallTime,
    alive,
    failed,
    in_state,
    open_replicas,
    refresh_until,
    wait_for_pids,
)
from support_process import wait_until


def replica_ids(records: list[ProcessRecord]) -> list[str]:
    return [each.replica_id for each in records]


def test_folders_of_ended_replicas_are_removed_after_a_while_but_for_the_latest_failed_ones(folder: Path) -> None:
    wall = WallTime()
    with open_replicas(folder, FAIL, wall, num_failed_kept=2, keep_seconds=100) as replicas:
        for _ in range(4):
            replicas.start(SPEC, 1)
            refresh_until(replicas, lambda: not alive(replicas))
            wall.now += 5
        last = replica_ids(failed(replicas))[-3:]
        replicas.refresh()
        assert replica_ids(failed(replicas)) == last  # the last one waits for its restart and is kept beside the two
    with open_replicas(folder, wall_time=wall, num_failed_kept=2, keep_seconds=100) as replicas:
        replicas.start(SPEC, 1)
        stopped = alive(replicas)[0].replica_id
        wait_for_pids(folder, replicas)
        replicas.stop([stopped])
        refresh_until(replicas, lambda: bool(in_state(replicas, RecordState.STOPPED)))
        wall.now += 99.5
        replicas.refresh()
        assert (folder / "replicas" / stopped).is_dir()
        wall.now += 0.5
        replicas.refresh()
        assert not (folder / "replicas" / stopped).exists()
        assert sorted(path.name for path in (folder / "replicas").iterdir()) == sorted(replica_ids(failed(replicas)))


def test_the_unread_lines_of_a_removed_folder_are_kept(folder: Path) -> None:
    wall = WallTime()
    with open_replicas(folder, FAIL, wall, num_failed_kept=0) as replicas:
        replicas.logs.follow([])
        replicas.start(SPEC, 1)
        refresh_until(replicas, lambda: not alive(replicas))
        replicas.release_failed()
        wall.now += 5
        replicas.refresh()
        assert replicas.records == [] and list((folder / "replicas").iterdir()) == []
        assert [line for _, line in replicas.logs.read([], [])] == ["loading", "the model is broken"]


def test_the_log_of_a_running_replica_is_bounded(folder: Path) -> None:
    command = ("sh", "-c", "head -c 5000 /dev/zero; exec sleep 600", "replica")
    with open_replicas(folder, command, max_log_bytes=1000) as replicas:
        replicas.start(SPEC, 1)
        log = folder / "replicas" / alive(replicas)[0].replica_id / "log"
        wait_until(lambda: log.exists() and log.stat().st_size == 5000, 20)
        replicas.refresh()
        assert log.stat().st_size == 0 and log.with_name("log.1").stat().st_size == 2000
