"""RayCluster over a fake driver: scale is safe to repeat after a crash at each call, and failures are replaced."""

import itertools
from typing import Any

import msgspec
import pytest

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.ray.cluster import KEEP_FAILED_SECONDS
from chairlift.cluster.ray.replica_view import ABSENT_SECONDS
from chairlift.cluster.ray.snapshot import ActorState
from chairlift.core.cluster_errors import ClusterFailed
from support_fake_ray import FAILED, PENDING, RUNNING, SPEC, Controller, FakeRay
from support_server import run


def test_scale_starts_the_missing_replicas_once_and_on_one_node_each() -> None:
    ray = FakeRay()
    controller = Controller(ray, host="0.0.0.0", command=("prog",), runtime_env={"pip": ["chairlift"]})
    controller.scale(3)
    controller.scale(3)
    assert controller.states() == [RUNNING] * 3
    assert {each.node_id for each in ray.groups.values()} == {"node0", "node1", "node2"}
    assert len({each.version for each in run(controller.cluster.list())} | {SPEC.version}) == 1
    assert ray.launches[0] == {
        "runtime_env": {"pip": ["chairlift"]}, "command": ("prog",), "model": "m",
        "arguments": ("--dtype", "float32"), "environ": {"A": "1"}, "host": "0.0.0.0",
    }  # fmt: skip
    run(controller.cluster.close())
    assert ray.is_closed


def test_start_adds_replicas_and_a_pending_one_says_why() -> None:
    controller = Controller(FakeRay(num_nodes=1))
    run(controller.cluster.start(SPEC, 2))
    run(controller.cluster.start(SPEC))
    assert controller.states() == [RUNNING, PENDING, PENDING]
    assert "in use now (1 by replicas" in run(controller.cluster.list())[1].reason


def test_scale_down_drains_placed_replicas_and_removes_pending_ones() -> None:
    ray = FakeRay(num_nodes=2)
    controller = Controller(ray)
    controller.scale(3)
    first, second, _ = controller.ids()
    controller.scale(1, first)
    assert controller.states() == [PlacementState.STOPPING, RUNNING]
    controller.scale(1, first)
    assert controller.ids() == [first, second]
    assert ray.calls.count("stop") == ray.calls.count("remove") == 1


def test_stop_ignores_unknown_ids_and_tries_all_before_it_fails() -> None:
    ray = FakeRay()
    controller = Controller(ray)
    controller.scale(2)
    run(controller.cluster.stop(["f-9-x"]))
    assert controller.states() == [RUNNING, RUNNING]
    stop_replica, failures = ray._stop, iter([True, False])

    def stop(**arguments: Any) -> None:
        if next(failures):
            raise ClusterFailed("the first actor does not answer")
        stop_replica(**arguments)

    ray._stop = stop  # type: ignore[method-assign]
    with pytest.raises(ClusterFailed, match="first actor"):
        run(controller.cluster.stop(controller.ids()))
    assert controller.states() == [RUNNING, PlacementState.STOPPING]


def test_a_dead_node_is_replaced_at_once_and_listed_for_a_minute() -> None:
    ray = FakeRay()
    controller = Controller(ray)
    controller.scale(2)
    ray.nodes[0] = msgspec.structs.replace(ray.nodes[0], is_alive=False)
    failed, _ = run(controller.cluster.list())
    assert (failed.state, failed.reason) == (FAILED, "its node h/node0 died, says Ray")
    controller.now += 2
    controller.scale(2)
    assert controller.states() == [RUNNING, RUNNING, FAILED]
    assert run(controller.cluster.list())[2].replica_id == failed.replica_id
    assert {each.node_id for each in ray.groups.values()} == {"node1", "node2"}
    controller.now += KEEP_FAILED_SECONDS
    assert controller.states() == [RUNNING, RUNNING]


def test_a_version_whose_replicas_end_by_themselves_starts_later_and_another_one_at_once() -> None:
    ray = FakeRay()
    controller = Controller(ray)
    num_started = []
    for _ in range(3):
        controller.scale(1)
        ray.report(next(iter(ray.groups)), state=ActorState.ENDED, exit_code=1)
        controller.scale(1)  # clears it
        controller.now += 0.9
        controller.scale(1)
        num_started.append(len(ray.launches))
        controller.now += 10
    assert num_started == [1, 2, 3]
    controller.now -= 10.9
    controller.scale(1, spec=ReplicaSpec(model="other", num_cpus=1))
    assert len(ray.launches) == 4


def test_a_silent_actor_keeps_its_url() -> None:
    ray = FakeRay()
    controller = Controller(ray)
    controller.scale(1)
    (group,) = ray.groups
    assert controller.states() == [RUNNING]
    ray.report(group, state=ActorState.SILENT, url="")
    (replica,) = run(controller.cluster.list())
    assert (replica.state, replica.url) == (RUNNING, f"http://{group}")


def test_of_two_controllers_one_starts_a_replica() -> None:
    ray = FakeRay()
    first, second = Controller(ray), Controller(ray)
    old = ray._snapshot()
    first.scale(2)
    ray._snapshot, new = lambda: old, ray._snapshot  # type: ignore[method-assign]
    second.scale(2)  # with what it knew before
    ray._snapshot = new  # type: ignore[method-assign]
    assert (len(ray.launches), second.states()) == (2, [RUNNING, RUNNING])


@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_after_a_failure_at_each_call_another_controller_goes_on(num_before: int) -> None:
    """A failing `create` leaves a placement group without an actor."""
    for fail_at in itertools.count():
        ray = FakeRay()
        Controller(ray).scale(num_before)
        removed = Controller(ray).ids()[:1]
        ray.calls, ray.fail_at = [], fail_at
        try:
            Controller(ray).scale(2, *removed)
        except ClusterFailed:
            ray.fail_at = None
        else:
            break
        following = Controller(ray, now=1000.0 + ABSENT_SECONDS + 1)
        following.scale(2, *removed)
        stopping = [group for group, each in ray.actors.items() if each.state is ActorState.STOPPING]
        for group in stopping:
            ray._remove(group=group)  # they have drained
        following.scale(2, *removed)
        assert [state for state in following.states() if state is not FAILED] == [RUNNING, RUNNING], fail_at
        assert len(ray.groups) == len(ray.actors) == 2
    assert fail_at >= 2
