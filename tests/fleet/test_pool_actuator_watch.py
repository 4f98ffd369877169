"""PoolActuator.watch: stuck replicas one at a time, dry runs, and failures that do not end it."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from chairlift.autoscaler.config import BudgetConfig
from chairlift.autoscaler.decision import Decision
from chairlift.cluster.cluster_replica import PlacementState
from chairlift.core.cluster_errors import ClusterFailed
from support_fleet import NEW, OLD, FakeCluster, FakeFleet
from support_server import run


def stops(fleet: FakeFleet) -> list[tuple[object, ...]]:
    return [call for call in fleet.cluster.calls if call[0] == "stop"]


def test_a_fresh_process_stops_no_old_replica_whose_reports_it_cannot_read() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        for name in ("a", "b", "c"):
            fleet.cluster.add(name, age_seconds=4000.0)
        for _ in range(300):
            fleet.clock.advance(1)
            await fleet.actuator.step()
        assert fleet.cluster.calls == []

    run(scenario())


def test_a_pod_that_was_pending_for_long_has_its_whole_time_to_become_ready() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        fleet.cluster.is_pending = True
        await fleet.decide(1)
        fleet.silent.add("r1")
        await fleet.run(300)
        fleet.cluster.set_state("r1", PlacementState.RUNNING)
        await fleet.run(99)
        assert not stops(fleet)
        await fleet.run(3)
        assert stops(fleet)[0] == ("stop", "r1") and fleet.cluster.num_started == 2

    run(scenario())


def test_when_all_are_silent_one_is_replaced_and_the_next_ones_after_that_has_helped() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(3)
        fleet.silence("r1", "r2", "r3", "r4")
        await fleet.run(90)
        assert stops(fleet) == [("stop", "r1")] and fleet.cluster.num_started == 4
        fleet.silent.remove("r4")
        await fleet.run(60)
        assert stops(fleet) == [("stop", "r1"), ("stop", "r2"), ("stop", "r3")]
        assert sorted(fleet.cluster.replicas) == ["r4", "r5", "r6"]

    run(scenario())


def test_a_replica_that_is_slow_to_stop_is_replaced_when_the_budget_has_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        fleet = FakeFleet(budget=BudgetConfig(cost_per_hour=2.0, prices={"": 1.0}))
        await fleet.ready(2)
        fleet.silence("r1")
        fleet.clock.advance(21)
        await fleet.actuator.step()
        assert stops(fleet) == [("stop", "r1")] and fleet.cluster.num_started == 2
        assert "r1 is stuck: it has not answered for 21 s" in caplog.text
        await fleet.run()
        assert fleet.cluster.num_started == 3, "without a decision of the autoscaler"

    run(scenario())


class ChoosingCluster(FakeCluster):
    """A cluster that removes the replicas of its own choice."""

    async def removable(self, replica_ids: Sequence[str]) -> Sequence[str]:
        return ("r2",)


def test_a_stuck_replica_stays_where_another_one_would_be_removed_instead(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        fleet = FakeFleet(cluster=ChoosingCluster())
        await fleet.ready(2)
        fleet.silence("r1")
        await fleet.run(80)
        assert not stops(fleet) and caplog.text.count("others would go instead") == 1
        await fleet.run(30)
        assert caplog.text.count("others would go instead") == 2
        fleet.silence("r2")
        await fleet.run(30)
        assert stops(fleet) == [("stop", "r2")]

    run(scenario())


def test_a_stop_that_fails_does_not_keep_an_update_from_going_on() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(2)
        fleet.silence("r1")
        fleet.cluster.denied.add("r1")
        fleet.clock.advance(21)
        fleet.actuator.update(NEW)
        with pytest.raises(ClusterFailed, match="cannot be stopped"):
            await fleet.actuator.step()
        assert NEW.version in fleet.versions()

    run(scenario())


def test_a_dry_run_changes_nothing() -> None:
    async def scenario() -> None:
        fleet = FakeFleet(spec=NEW, is_dry_run=True)
        for name in ("a", "b"):
            fleet.cluster.add(name, OLD.version)
        await fleet.run(2)
        fleet.silence("a", "b")
        await fleet.run(200)
        await fleet.actuator.apply(Decision(at_seconds=0.0, target=0, current=2, remove=("a", "b")))
        assert await fleet.actuator.stop_all(5.0) == 0
        assert fleet.cluster.calls == [] and not fleet.actuator.accepts_updates
        assert fleet.router.serving == ("http://a", "http://b") and not fleet.router.draining

    run(scenario())


def test_an_unexpected_exception_does_not_end_the_watch_and_is_logged_with_its_place(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(1)

        async def start(*arguments: object) -> None:
            raise ValueError("embedded null byte")

        monkeypatch.setattr(FakeCluster, "start", start)
        fleet.actuator.update(NEW)
        watching = asyncio.create_task(fleet.actuator.watch())
        await asyncio.sleep(0.01)
        assert not watching.done()
        monkeypatch.undo()
        fleet.actuator.update(NEW)  # wakes it up
        async with asyncio.timeout(5):
            while NEW.version not in fleet.versions():
                await asyncio.sleep(0.01)
        watching.cancel()
        (record,) = [each for each in caplog.records if "embedded null byte" in each.getMessage()]
        assert record.levelno == logging.ERROR and record.exc_info

    run(scenario())


def test_a_failure_that_lasts_is_logged_once_a_minute_and_tried_more_seldom(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        fleet, delays = FakeFleet(), list[float]()
        fleet.cluster.is_down = True

        class Wait:
            def __init__(self, seconds: float) -> None:
                delays.append(seconds)
                fleet.clock.advance(seconds)

            async def __aenter__(self) -> None:
                if len(delays) == 20:
                    raise asyncio.CancelledError
                raise TimeoutError

            async def __aexit__(self, *arguments: object) -> None:
                raise AssertionError

        with monkeypatch.context() as patch:
            patch.setattr("chairlift.fleet.pool_actuator.asyncio.timeout", Wait)
            with pytest.raises(asyncio.CancelledError):
                await fleet.actuator.watch()
        assert delays[:6] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        assert caplog.text.count("the cluster is down") == 1 + int(sum(delays[:-1]) / 60)

    run(scenario())
