"""RayCluster: actors that hang are killed, what failed frees its resources, crash loops end, nonsense is an error."""

from typing import Any

import pytest

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.ray.cluster import KEEP_FAILED_SECONDS, MAX_FAILED_STOPS
from chairlift.cluster.ray.crash_loop_backoff import MAX_FAILURES
from chairlift.cluster.ray.snapshot import ActorState
from chairlift.core.cluster_errors import ClusterFailed
from support_fake_ray import FAILED, RUNNING, SPEC, Controller, FakeRay
from support_server import run
from support_shares import for_each


def end_all(ray: FakeRay) -> None:
    for group in ray.groups:
        ray.report(group, state=ActorState.ENDED, exit_code=1)


def test_an_actor_that_does_not_note_its_stop_is_killed_after_a_few_attempts() -> None:
    ray = FakeRay()
    controller = Controller(ray)
    controller.scale(1)
    (hung,) = controller.ids()
    ray.report(next(iter(ray.groups)), state=ActorState.SILENT)

    def stop(**_: Any) -> None:
        raise ClusterFailed("failed in the call 'stop': GetTimeoutError")

    ray._stop = stop  # type: ignore[method-assign]
    for _ in range(MAX_FAILED_STOPS - 1):
        with pytest.raises(ClusterFailed, match="GetTimeoutError"):
            run(controller.cluster.stop([hung]))
    assert controller.ids() == [hung]
    run(controller.cluster.stop([hung]))
    assert controller.ids() == [] and not ray.groups


def test_stops_that_fail_with_others_between_kill_nothing() -> None:
    ray = FakeRay()
    controller = Controller(ray)
    controller.scale(1)
    (slow,) = controller.ids()
    stop_replica, number = ray._stop, 0

    def stop(**arguments: Any) -> None:
        nonlocal number
        number += 1
        if number % MAX_FAILED_STOPS:
            raise ClusterFailed("late")
        stop_replica(**arguments)

    ray._stop = stop  # type: ignore[method-assign]
    for attempt in range(1, 3 * MAX_FAILED_STOPS):
        if attempt % MAX_FAILED_STOPS:
            with pytest.raises(ClusterFailed):
                run(controller.cluster.stop([slow]))
        else:
            run(controller.cluster.stop([slow]))
    assert controller.states() == [PlacementState.STOPPING]


@for_each("call", ["list", "start", "stop", "scale"])
@for_each("fields", [
    {"state": ActorState.ENDED, "exit_code": 1}, {"state": ActorState.STOPPING, "stopping_seconds": 3600.0},
])  # fmt: skip
def test_every_call_frees_what_failed_and_overdue_replicas_hold(call: str, fields: dict[str, Any]) -> None:
    ray = FakeRay()
    controller = Controller(ray)
    controller.scale(2)
    old, other = ray.groups
    ray.report(old, **fields)
    if call == "list":
        run(controller.cluster.list())
    elif call == "start":
        run(controller.cluster.start(ReplicaSpec(model="another", num_cpus=1)))
    elif call == "stop":
        run(controller.cluster.stop([]))
    else:
        controller.scale(1)
    assert old not in ray.groups and other in ray.groups
    assert ray.calls.count("remove") == 1


def test_a_list_does_not_fail_where_nothing_can_be_freed() -> None:
    ray = FakeRay()
    controller = Controller(ray)
    controller.scale(1)
    end_all(ray)
    ray._remove = lambda **_: (_ for _ in ()).throw(ClusterFailed("late"))  # type: ignore[method-assign]
    assert controller.states() == [FAILED]


def fail_until_crash_loop(ray: FakeRay, controller: Controller) -> None:
    for number in range(1, MAX_FAILURES + 1):
        controller.now += 200
        controller.scale(1)
        assert len(ray.launches) == number
        end_all(ray)
        controller.states()
    controller.now += 10_000


def test_after_five_failures_nothing_is_started_until_an_operator_asks() -> None:
    ray = FakeRay()
    controller = Controller(ray)
    fail_until_crash_loop(ray, controller)
    controller.scale(1)
    with pytest.raises(ClusterFailed, match="crash loop: 5 starts in a row"):
        run(controller.cluster.start(SPEC))
    assert len(ray.launches) == MAX_FAILURES and not ray.groups
    (shown,) = run(controller.cluster.list())  # for ever, so that the operator sees it
    assert shown.state is FAILED and "exit code 1" in shown.reason and "crash loop" in shown.reason
    controller.scale(1, spec=ReplicaSpec(model="other", num_cpus=1))
    run(controller.cluster.release_failed())
    controller.scale(2)
    assert len(ray.launches) == MAX_FAILURES + 2
    controller.now += KEEP_FAILED_SECONDS
    assert controller.states() == [RUNNING, RUNNING]


def test_a_version_that_has_served_is_in_no_crash_loop() -> None:
    ray = FakeRay()
    controller = Controller(ray)
    for number in range(1, MAX_FAILURES + 3):
        controller.now += 200
        controller.scale(1)
        assert len(ray.launches) == number
        controller.serving = {f"http://{group}" for group in ray.groups}

        async def list_and_probe() -> None:
            await controller.cluster.list()
            assert controller.cluster._probes is not None
            await controller.cluster._probes

        run(list_and_probe())
        end_all(ray)
        controller.states()


def test_start_waits_as_scale_does() -> None:
    ray = FakeRay()
    controller = Controller(ray)
    run(controller.cluster.start(SPEC))
    end_all(ray)
    for _ in range(3):
        with pytest.raises(ClusterFailed, match=r"starts in 1\.0 s at the earliest"):
            run(controller.cluster.start(SPEC))
    controller.now += 1.0
    run(controller.cluster.start(SPEC))
    assert len(ray.launches) == 2


def test_a_snapshot_of_another_form_is_an_error_of_the_cluster_and_ends_the_driver() -> None:
    ray = FakeRay()
    ray._snapshot = lambda: {"nodes": [{"node_id": 3}]}  # type: ignore[method-assign]
    with pytest.raises(ClusterFailed, match="answers nonsense"):
        Controller(ray).states()
    assert ray.is_closed
