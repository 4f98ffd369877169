"""LocalReplicas: start, scale, stop, restart and adoption of real processes, under a time of day that the test sets."""

import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.local.local_replicas import LocalReplicas
from chairlift.cluster.local.process_record import ProcessRecord, RecordState
from chairlift.cluster.local.state_folder import StateFolder
from chairlift.core.cluster_errors import ClusterFailed
from support_local_cluster import (
    FAIL,
    IGNORE_SIGTERM,
    SPEC,
    WallTime,
    alive,
    failed,
    in_state,
    open_replicas,
    refresh_until,
    wait_for_pids,
)
from support_process import has_ended, wait_until

OTHER = replace(SPEC, arguments=("--other",))


def ids(records: list[ProcessRecord]) -> list[str]:
    return [each.replica_id for each in records]


def end_all(replicas: LocalReplicas, number: int) -> None:
    """Wait until that many replicas have ended by themselves."""
    refresh_until(replicas, lambda: len(failed(replicas)) >= number and not alive(replicas))


# -- start, scale, stop ------------------------------------------------------------------------------------------------


def test_scale_has_exactly_the_target_and_starts_nothing_twice(folder: Path) -> None:
    wall = WallTime()
    with open_replicas(folder, wall_time=wall) as replicas:
        for target in (2, 2, 3, 1, 1, 0):
            wall.now += 1
            before = ids(alive(replicas))
            replicas.scale(SPEC, target, ())
            after = ids(alive(replicas))
            assert len(after) == target
            assert after[: len(before)] == before[:target]  # the youngest are stopped, the others stay
            wait_for_pids(folder, replicas)  # else a pending one goes before
        refresh_until(replicas, lambda: len(in_state(replicas, RecordState.STOPPED)) == 3)


def test_the_processes_of_stopped_replicas_end(folder: Path) -> None:
    with open_replicas(folder) as replicas:
        replicas.scale(SPEC, 2, ())
        pids = wait_for_pids(folder, replicas)
        replicas.scale(SPEC, 0, ())
        refresh_until(replicas, lambda: len(in_state(replicas, RecordState.STOPPED)) == 2)
        assert all(has_ended(pid) for pid in pids.values())


def test_record_and_lock_are_there_before_the_process_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a controller that is killed at any moment leaves no process without them."""
    seen = []

    def spawn_nothing(path: Path, lock: int, *_: object) -> int:
        record = ProcessRecord.from_json((path / "record.json").read_text())
        seen.append((record.state, os.readlink(f"/proc/self/fd/{lock}"), StateFolder(folder).is_locked(path.name)))
        raise OSError("stop here")

    monkeypatch.setattr("chairlift.cluster.local.local_replicas.spawn", spawn_nothing)
    with open_replicas(folder) as replicas:
        replicas.start(SPEC, 1)
        (record,) = replicas.records
    assert seen == [(RecordState.ALIVE, str(folder / "replicas" / record.replica_id / "lock"), True)]


def test_those_of_remove_go_first_and_are_replaced_only_up_to_the_target(folder: Path) -> None:
    with open_replicas(folder) as replicas:
        replicas.scale(SPEC, 3, ())
        first, *others = ids(alive(replicas))
        replicas.scale(SPEC, 2, (first, "r-unknown"))
        assert sorted(ids(alive(replicas))) == sorted(others)
        replicas.scale(OTHER, 2, (others[0], first))
        assert {each.version for each in alive(replicas)} == {SPEC.version, OTHER.version}
        assert others[1] in ids(alive(replicas))


def test_pending_replicas_go_before_the_youngest(folder: Path) -> None:
    wall = WallTime()
    with open_replicas(folder, wall_time=wall) as replicas:
        replicas.scale(SPEC, 2, ())
        old, young = ids(alive(replicas))
        wait_for_pids(folder, replicas)
        assert replicas.placement_state(alive(replicas)[0]) is PlacementState.RUNNING
        pid_file = folder / "replicas" / old / "pid"
        pid_file.rename(pid_file.with_name("hidden"))
        assert replicas.placement_state(alive(replicas)[0]) is PlacementState.PENDING
        replicas.scale(SPEC, 1, ())
        pid_file.with_name("hidden").rename(pid_file)
        assert ids(alive(replicas)) == [young]


def test_ports_are_those_of_the_command_and_never_used_twice(folder: Path) -> None:
    command = ("sh", "-c", 'echo "$@"; exec sleep 600', "replica")
    with open_replicas(folder, command) as replicas:
        replicas.start(replace(SPEC, arguments=("--dtype", "float32")), 3)
        wait_for_pids(folder, replicas)
        for each in alive(replicas):
            log = folder / "replicas" / each.replica_id / "log"
            wait_until(lambda log=log: log.read_text().endswith("\n"), 20)  # type: ignore[misc]
            assert log.read_text() == f"m --host 127.0.0.1 --port {each.port} --dtype float32\n"
        assert len({each.port for each in alive(replicas)}) == 3


def test_a_range_of_ports_bounds_the_replicas(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with open_replicas(folder, ports=(port, port)) as replicas:
            with pytest.raises(ClusterFailed, match=f"no port of {port} to {port}"):
                replicas.start(SPEC, 1)
            assert replicas.records == []
            assert list((folder / "replicas").iterdir()) == []


def test_cpus_and_gpus_are_given_out(folder: Path) -> None:
    usable = os.sched_getaffinity(0)
    command = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"; exec sleep 600', "replica")
    spec = ReplicaSpec(num_cpus=len(usable), num_gpus=1, environ={"CUDA_VISIBLE_DEVICES": "x"})
    with open_replicas(folder, command, gpus=("GPU-a", "GPU-b")) as replicas:
        replicas.start(spec, 2)
        with pytest.raises(ClusterFailed, match="0 of 2 are free"):
            replicas.start(spec, 1)
        pids = wait_for_pids(folder, replicas)
        first, second = sorted(alive(replicas), key=lambda each: each.gpus)
        assert first.gpus + second.gpus == ("GPU-a", "GPU-b")
        assert all(os.sched_getaffinity(pid) == usable for pid in pids.values())
        cpus = ", ".join(map(str, sorted(usable)))
        assert (first.note, second.note) == ("", f"it shares the CPUs {cpus} with 1 other replica")
        log = folder / "replicas" / second.replica_id / "log"
        wait_until(lambda: log.read_text() == "GPU-b\n", 20)


def test_the_environment_of_the_spec_wins_and_is_in_no_file(folder: Path) -> None:
    command = ("sh", "-c", 'echo "$A $B $HOME"; exec sleep 600', "replica")
    environ = {"A": "of the cluster", "B": "of the cluster", "PATH": os.environ["PATH"]}
    with open_replicas(folder, command, environ=environ) as replicas:
        replicas.start(ReplicaSpec(environ={"A": "the-key"}), 1)
        path = folder / "replicas" / alive(replicas)[0].replica_id
        wait_until(lambda: (path / "log").exists() and (path / "log").read_text() == "the-key of the cluster \n", 20)
        assert "the-key" not in (path / "record.json").read_text()


def test_a_replica_that_ignores_sigterm_is_killed_after_the_timeout_by_the_next_controller(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wall = WallTime()
    with open_replicas(folder, IGNORE_SIGTERM, wall, stop_timeout=30.0) as replicas:
        replicas.start(SPEC, 1)
        (pid,) = wait_for_pids(folder, replicas).values()
        replica_id = alive(replicas)[0].replica_id
        log = folder / "replicas" / replica_id / "log"
        wait_until(lambda: log.read_text() == "ready\n", 20)
        replicas.stop([replica_id, "r-unknown"])
        replicas.stop([replica_id])
        assert replicas.placement_state(replicas.records[0]) is PlacementState.STOPPING
    wall.now += 29.9
    with open_replicas(folder, wall_time=wall, stop_timeout=30.0) as replicas:
        assert in_state(replicas, RecordState.STOPPING) and not has_ended(pid)
        wall.now += 0.1
        refresh_until(replicas, lambda: has_ended(pid))
        refresh_until(replicas, lambda: bool(in_state(replicas, RecordState.STOPPED)))
    assert caplog.text.count("did not stop within 30 s and is killed") == 1


def test_sigterm_is_sent_once(folder: Path) -> None:
    command = ("sh", "-c", "trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done", "replica")
    with open_replicas(folder, command) as replicas:
        replicas.start(SPEC, 1)
        path = folder / "replicas" / alive(replicas)[0].replica_id
        wait_until(lambda: (path / "log").exists() and (path / "log").read_text() == "ready\n", 20)
        replicas.stop([path.name])
        wait_until(lambda: (path / "log").read_text() == "ready\nterm\n", 20)
        for _ in range(3):
            replicas.refresh()
    with open_replicas(folder) as replicas:
        replicas.refresh()
        os.kill(wait_for_pids(folder, replicas)[path.name], signal.SIGKILL)
        refresh_until(replicas, lambda: not in_state(replicas, RecordState.STOPPING))
        assert (path / "log").read_text() == "ready\nterm\n"


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_failed_replica_is_restarted_after_its_delay_on_another_port(folder: Path) -> None:
    wall = WallTime()
    with open_replicas(folder, FAIL, wall) as replicas:
        replicas.scale(SPEC, 1, ())
        end_all(replicas, 1)
        first = failed(replicas)[0]
        assert first.exit_code == 3
        for _ in range(3):
            replicas.scale(SPEC, 1, ())
        assert len(replicas.records) == 1
        wall.now += 1.0
        replicas.scale(SPEC, 1, ())
        replicas.scale(SPEC, 1, ())
        second = replicas.records[-1]
        assert len(replicas.records) == 2 and second.replaces == first.replica_id
        assert replicas.records[0].is_replaced and second.num_failures == 1


def fail_until_crash_loop(replicas: LocalReplicas, wall: WallTime) -> None:
    for number in range(1, 6):
        replicas.scale(SPEC, 1, ())
        refresh_until(replicas, lambda: not alive(replicas))
        assert failed(replicas)[-1].num_failures == number - 1
        wall.now += 61


def test_five_failures_are_a_crash_loop_which_ends_with_a_new_start_of_the_fleet(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wall = WallTime()
    with open_replicas(folder, FAIL, wall) as replicas:
        fail_until_crash_loop(replicas, wall)
        for target in (1, 0, 1):
            wall.now += 1000
            replicas.scale(SPEC, target, ())
            assert not alive(replicas)
    assert caplog.text.count("crash loop: replica") == 1
    with open_replicas(folder, wall_time=wall) as replicas:
        replicas.scale(SPEC, 1, ())
        assert [each.num_failures for each in alive(replicas)] == [0]


@pytest.mark.share(3)
@pytest.mark.parametrize("way", ["spec", "spec and back", "start", "stop", "release"])
def test_a_crash_loop_ends_with_new_settings_or_when_an_operator_asks(folder: Path, way: str) -> None:
    wall = WallTime()
    with open_replicas(folder, FAIL, wall, max_failures=1) as replicas:
        replicas.scale(SPEC, 1, ())
        end_all(replicas, 1)
        wall.now += 1000
        replicas.scale(SPEC, 1, ())
        assert not alive(replicas)
        if way == "spec and back":
            replicas.scale(OTHER, 0, ())
        elif way == "start":
            replicas.start(SPEC, 0)
        elif way == "stop":
            replicas.stop(ids(failed(replicas)))
        elif way == "release":
            replicas.release_failed()
        replicas.scale(OTHER if way == "spec" else SPEC, 1, ())
        assert [each.num_failures for each in alive(replicas)] == [0]


def test_a_replica_that_has_served_is_in_no_crash_loop(folder: Path) -> None:
    wall = WallTime()
    with open_replicas(folder, wall_time=wall, max_failures=1) as replicas:
        replicas.scale(SPEC, 1, ())
        ((replica_id, pid),) = wait_for_pids(folder, replicas).items()
        replicas.note_serving([replica_id, "r-unknown"])
        os.kill(pid, signal.SIGKILL)
        end_all(replicas, 1)
        assert failed(replicas)[0].exit_code == -signal.SIGKILL
        wall.now += 1
        replicas.scale(SPEC, 1, ())
        assert alive(replicas)[0].num_failures == 0 and alive(replicas)[0].num_restarts == 1


def test_a_process_that_cannot_be_started_is_a_failed_replica(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("chairlift.cluster.local.local_replicas.spawn", fail)
    with open_replicas(folder) as replicas:
        replicas.scale(SPEC, 1, ())
        replicas.scale(SPEC, 1, ())
        assert len(replicas.records) == 1
        assert "cannot be started" in failed(replicas)[0].note and "unavailable" in failed(replicas)[0].note


def test_a_clock_that_was_set_back_delays_restarts_and_kills_by_their_own_time_at_most(folder: Path) -> None:
    wall = WallTime()
    with open_replicas(folder, FAIL, wall) as replicas:
        replicas.scale(SPEC, 1, ())
        end_all(replicas, 1)
        wall.now -= 100_000
        replicas.scale(SPEC, 1, ())
        wall.now += 1.0
        replicas.scale(SPEC, 1, ())
        assert len(replicas.records) == 2


def test_a_clock_that_is_set_forward_kills_no_replica_that_drains(folder: Path) -> None:
    wall, monotonic = WallTime(), WallTime()
    with open_replicas(folder, IGNORE_SIGTERM, wall, monotonic, stop_timeout=30.0) as replicas:
        replicas.start(SPEC, 1)
        (pid,) = wait_for_pids(folder, replicas).values()
        wait_until((folder / "replicas" / alive(replicas)[0].replica_id / "log").read_text, 20)
        replicas.stop([alive(replicas)[0].replica_id])
        wall.now += 100_000
        replicas.refresh()
        assert [each.is_killed for each in replicas.records] == [False]
        monotonic.now += 30
        refresh_until(replicas, lambda: has_ended(pid))


# -- adoption ----------------------------------------------------------------------------------------------------------


def test_the_next_controller_adopts_what_runs_and_notices_its_end(folder: Path) -> None:
    with open_replicas(folder) as replicas:
        replicas.scale(SPEC, 2, ())
        before, pids = replicas.records, wait_for_pids(folder, replicas)
    with open_replicas(folder) as replicas:
        assert replicas.records == before
        replicas.scale(SPEC, 2, ())
        assert replicas.records == before
        gone, left = pids
        os.kill(pids[gone], signal.SIGKILL)
        refresh_until(replicas, lambda: ids(failed(replicas)) == [gone])
        assert failed(replicas)[0].exit_code is None  # it is no child of this controller
        replicas.scale(SPEC, 0, ())
        assert ids(in_state(replicas, RecordState.STOPPING, RecordState.STOPPED)) == [left]
        wait_until(lambda: has_ended(pids[left]), 20)


def test_what_never_had_a_process_is_removed(folder: Path) -> None:
    """Its controller was killed before the process existed."""
    with open_replicas(folder) as replicas:
        pass
    (folder / "replicas" / "r-empty").mkdir()
    (folder / "replicas" / "r-record").mkdir()
    record = ProcessRecord(replica_id="r-record", version=SPEC.version)
    (folder / "replicas" / "r-record" / "record.json").write_text(record.to_json())
    with open_replicas(folder) as replicas:
        assert replicas.records == [] and list((folder / "replicas").iterdir()) == []
        replicas.scale(SPEC, 1, ())
        assert len(alive(replicas)) == 1


def test_a_process_whose_record_cannot_be_read_is_stopped(folder: Path) -> None:
    with open_replicas(folder) as replicas:
        replicas.start(SPEC, 1)
        ((replica_id, pid),) = wait_for_pids(folder, replicas).items()
    (folder / "replicas" / replica_id / "record.json").write_text("{")
    with open_replicas(folder) as replicas:
        wait_until(lambda: has_ended(pid), 20)
        refresh_until(replicas, lambda: bool(in_state(replicas, RecordState.STOPPED)))
        assert alive(replicas) == []


def test_a_stop_that_was_noted_but_not_sent_is_sent(folder: Path) -> None:
    wall = WallTime()
    with open_replicas(folder, wall_time=wall) as replicas:
        replicas.start(SPEC, 1)
        ((replica_id, pid),) = wait_for_pids(folder, replicas).items()
        record = replace(alive(replicas)[0], state=RecordState.STOPPING, stopping_at=wall.now)
    (folder / "replicas" / replica_id / "record.json").write_text(record.to_json())
    with open_replicas(folder, wall_time=wall):
        wait_until(lambda: has_ended(pid), 20)


def test_a_restart_whose_note_was_not_written_is_not_made_twice(folder: Path) -> None:
    wall = WallTime()
    command = ("sh", "-c", f'mkdir "{folder}/second" && exit 3; exec sleep 600', "replica")
    with open_replicas(folder, command, wall) as replicas:
        replicas.scale(SPEC, 1, ())
        end_all(replicas, 1)
        old = failed(replicas)[0]
        wall.now += 2
        replicas.scale(SPEC, 1, ())
        assert [each.replaces for each in alive(replicas)] == [old.replica_id]
        wait_for_pids(folder, replicas)
    (folder / "replicas" / old.replica_id / "record.json").write_text(old.to_json())
    with open_replicas(folder, wall_time=wall) as replicas:
        assert [each.is_replaced for each in failed(replicas)] == [True]
        replicas.scale(SPEC, 2, ())
        assert [each.replaces for each in alive(replicas)].count(old.replica_id) == 1
