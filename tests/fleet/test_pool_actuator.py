"""PoolActuator: replicas are started once, drained before they stop, taken back, replaced and updated."""

import asyncio

import pytest

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.limits.budget import limit_to_budget
from chairlift.cluster.cluster_replica import PlacementState
from chairlift.core.cluster_errors import ClusterFailed
from chairlift.core.load_report import ReplicaState
from support_fleet import NEW, FakeFleet
from support_server import run

READY, STARTING, DRAINING = ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING


def test_missing_replicas_are_started_once_and_serve_when_they_are_ready() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.decide(2)
        await fleet.decide(2)
        assert fleet.cluster.calls == [("start", 2)] and fleet.router.serving == ()
        fleet.report("r1", state=STARTING)
        fleet.report("r2", cpu_ratio=0.5, memory_ratio=0.25)
        sample = await fleet.actuator.sample()
        assert [each.state for each in sample.replicas] == [STARTING, READY]
        assert [each.cpu_ratio for each in sample.replicas] == [None, 0.5] and sample.replicas[1].gpu_ratio is None
        assert fleet.router.serving == ("http://r2",)
        assert (sample.wall_seconds, sample.held_requests) == (5.0, 7.0)

    run(scenario())


def test_a_replica_is_drained_before_it_is_stopped() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(2)
        fleet.router.open_requests["http://r1"] = 1
        await fleet.decide(1, "r1")
        await fleet.actuator.step()
        assert fleet.router.draining == {"http://r1"} and ("stop", "r1") not in fleet.cluster.calls
        sample = await fleet.actuator.sample()
        assert [each.state for each in sample.replicas] == [DRAINING, READY]
        assert fleet.router.serving == ("http://r1", "http://r2"), "its streams still run"
        fleet.router.open_requests.clear()
        await fleet.actuator.step()
        assert fleet.cluster.calls[-1] == ("stop", "r1")
        await fleet.actuator.step()
        assert fleet.router.serving == ("http://r2",)
        assert fleet.cluster.calls.count(("stop", "r1")) == 1, "a cluster that counts would stop another one, too"

    run(scenario())


def test_a_drain_that_takes_too_long_is_ended() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(2)
        fleet.router.open_requests["http://r1"] = 1
        await fleet.decide(1, "r1")
        fleet.clock.advance(31)
        fleet.report("r1", "r2")
        await fleet.actuator.step()
        assert fleet.cluster.calls[-1] == ("stop", "r1")

    run(scenario())


def test_a_replica_that_has_never_served_is_stopped_without_a_drain() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.decide(2)
        fleet.report("r1")
        await fleet.decide(1, "r2")
        assert fleet.cluster.calls[-1] == ("stop", "r2") and not fleet.router.draining

    run(scenario())


def test_a_draining_replica_is_taken_back_before_another_one_is_started() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(2)
        fleet.router.open_requests["http://r1"] = 1
        await fleet.decide(1, "r1")
        await fleet.decide(3)
        assert not fleet.router.draining and fleet.cluster.calls[-1] == ("start", 1)
        await fleet.actuator.step()
        assert not [call for call in fleet.cluster.calls if call[0] == "stop"]

    run(scenario())


def test_at_the_limit_a_draining_replica_is_taken_back_when_the_load_returns() -> None:
    async def scenario() -> None:
        fleet, config = FakeFleet(max_replicas=2), AutoscalerConfig(max_replicas=2)
        await fleet.ready(2)
        fleet.router.open_requests["http://r1"] = 1
        await fleet.decide(1, "r1")
        sample = await fleet.actuator.sample()
        live, draining = [sample.replicas[1]], [sample.replicas[0]]
        assert [each.can_return for each in sample.replicas] == [True, False]
        assert limit_to_budget(2, live, draining, config) == (2, ())
        await fleet.decide(2)
        assert not fleet.router.draining and fleet.cluster.num_started == 2

    run(scenario())


def test_a_replica_that_was_stopped_or_has_an_old_version_cannot_be_taken_back() -> None:
    async def scenario() -> None:
        fleet = FakeFleet(max_replicas=3)
        await fleet.ready(3)
        fleet.router.open_requests["http://r2"] = 1
        await fleet.decide(1, "r1", "r2")
        await fleet.actuator.step()
        states = {each.replica_id: each.can_return for each in (await fleet.actuator.sample()).replicas}
        assert states == {"r1": False, "r2": True, "r3": False}, "r1 was stopped"
        updated = FakeFleet(spec=NEW)
        updated.cluster.add("a")
        updated.router.open_requests["http://a"] = 1
        await updated.run(3)
        assert updated.router.draining == {"http://a"}
        assert not any(each.can_return for each in (await updated.actuator.sample()).replicas)

    run(scenario())


def test_replicas_that_drain_count_against_the_limit() -> None:
    async def scenario() -> None:
        fleet = FakeFleet(max_replicas=2)
        await fleet.ready(2)
        fleet.router.open_requests = {"http://r1": 1}
        await fleet.decide(1, "r1")
        fleet.actuator.update(NEW)  # of the old version: it is not taken back
        await fleet.decide(2)
        assert fleet.cluster.num_started == 2
        fleet.router.open_requests.clear()
        await fleet.actuator.step()
        fleet.cluster.end_stopped()
        await fleet.actuator.step()
        assert fleet.cluster.num_started == 3 and fleet.cluster.replicas["r3"].version == NEW.version

    run(scenario())


def test_an_update_replaces_one_after_the_other_and_always_has_enough() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(2)
        fleet.actuator.update(NEW)
        num_serving = []
        for _ in range(12):
            surplus = ["r3"] if fleet.actuator.status.is_updating else []
            await fleet.decide(2, *surplus)  # the autoscaler would remove what the update has too many
            await fleet.actuator.step()
            num_serving.append(len(set(fleet.router.serving) - fleet.router.draining))
            fleet.cluster.end_stopped()
            fleet.report(*fleet.cluster.replicas)
        assert {each.version for each in fleet.cluster.replicas.values()} == {NEW.version}
        assert set(fleet.cluster.replicas) == {"r3", "r4"} and not fleet.actuator.status.is_updating
        assert min(num_serving) >= 2

    run(scenario())


def test_a_replica_that_does_not_answer_any_more_is_replaced() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(2)
        del fleet.reader.loads["http://r1"]
        fleet.clock.advance(19)
        await fleet.actuator.step()
        sample = await fleet.actuator.sample()
        assert [each.state for each in sample.replicas] == [READY, READY], "a pause is no end"
        assert sample.replicas[0].running_requests is None and sample.replicas[1].running_requests == 0
        fleet.clock.advance(2)
        await fleet.actuator.step()
        assert fleet.cluster.calls[-2:] == [("stop", "r1"), ("start", 1)]

    run(scenario())


def test_the_reason_of_a_failed_replica_is_kept_for_operators_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(2)
        fleet.cluster.set_state("r1", PlacementState.FAILED, "exit code 3: out of memory")
        for _ in range(3):
            sample = await fleet.actuator.sample()
        assert [each.replica_id for each in sample.replicas] == ["r2"] and fleet.router.serving == ("http://r2",)
        assert fleet.actuator.status.failed == {"r1": "exit code 3: out of memory"}
        assert caplog.text.count("out of memory") == 1
        await fleet.decide(2)
        assert fleet.cluster.num_started == 3

    run(scenario())


def test_a_cluster_that_is_down_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        fleet.cluster.is_down = True
        with pytest.raises(ClusterFailed):
            await fleet.actuator.sample()
        watching = asyncio.create_task(fleet.actuator.watch())
        await asyncio.sleep(0.01)
        assert "the cluster is down" in caplog.text and not watching.done()
        fleet.cluster.is_down = False
        await fleet.decide(1)
        fleet.report("r1")
        await asyncio.wait_for(_until_serving(fleet), 5)
        watching.cancel()

    run(scenario())


async def _until_serving(fleet: FakeFleet) -> None:
    while not fleet.router.serving:
        await asyncio.sleep(0.01)


def test_all_replicas_are_stopped_at_the_end() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(3)
        fleet.cluster.set_state("r2", PlacementState.FAILED)

        async def ended() -> None:
            while fleet.cluster.calls[-1][0] != "stop":
                await asyncio.sleep(0.01)
            fleet.cluster.end_stopped()

        left, _ = await asyncio.gather(fleet.actuator.stop_all(5.0), ended())
        assert left == 0 and fleet.cluster.calls[-1] == ("stop", "r1", "r3")

    run(scenario())
