"""PoolActuator: an update whose replicas cannot start ends, and the old ones serve and are scaled as before."""

import pytest

from chairlift.autoscaler.config import BudgetConfig
from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import PlacementState
from chairlift.core.load_report import ReplicaState
from chairlift.fleet.rolling_update import MAX_FAILURES
from support_fleet import NEW, OLD, FakeFleet
from support_server import run

FAILED, RUNNING = PlacementState.FAILED, PlacementState.RUNNING


def test_an_update_whose_replicas_fail_is_stopped_with_the_reason_and_the_old_ones_serve(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(2)
        versions: list[str] = []
        fleet.actuator.on_version = versions.append
        fleet.cluster.broken.add(NEW.version)
        fleet.actuator.update(NEW)
        await fleet.run(20)
        status = fleet.actuator.status
        assert fleet.cluster.num_started == 2 + MAX_FAILURES, "no more are started"
        assert not status.is_updating and "exit code 3: no such model" in status.update_failure
        assert f"{MAX_FAILURES} replicas in a row" in status.update_failure
        assert (status.version, fleet.actuator.spec) == (OLD.version, OLD)
        assert versions == [NEW.version, OLD.version]
        assert fleet.router.serving == ("http://r1", "http://r2") and not fleet.router.draining
        assert caplog.text.count("was stopped") == 1
        assert fleet.cluster.calls[-1] == ("stop", *(f"r{number}" for number in range(3, 3 + MAX_FAILURES)))

    run(scenario())


def test_a_failed_replica_of_an_update_keeps_its_place_until_its_cluster_starts_another_one() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(1)
        fleet.cluster.broken.add(NEW.version)
        fleet.cluster.has_delay = True
        fleet.actuator.update(NEW)
        await fleet.run(20)
        assert fleet.cluster.num_started == 2 and fleet.actuator.status.is_updating
        fleet.cluster.has_delay = False
        await fleet.run()
        assert fleet.cluster.num_started > 2

    run(scenario())


def test_an_operators_update_to_what_has_failed_before_is_tried_at_once() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(1)
        fleet.cluster.broken.add(NEW.version)
        fleet.actuator.update(NEW)
        await fleet.run(20)
        fleet.cluster.has_delay = True
        fleet.cluster.replaced.clear()  # the cluster starts none by itself
        fleet.cluster.broken.clear()
        fleet.actuator.update(NEW)
        assert fleet.actuator.status.update_failure == ""
        await fleet.run(3)
        assert fleet.versions() == [NEW.version] and not fleet.actuator.status.is_updating

    run(scenario())


@pytest.mark.parametrize("is_back", [True, False])
def test_after_a_failed_update_another_one_works(is_back: bool) -> None:
    async def scenario() -> None:
        fleet = FakeFleet(max_replicas=2)
        await fleet.ready(2)
        fleet.cluster.broken.add(NEW.version)
        fleet.actuator.update(NEW)
        await fleet.run(1 if is_back else 20)
        spec = OLD if is_back else ReplicaSpec(model="good")
        fleet.actuator.update(spec)
        await fleet.run(20)
        assert fleet.versions() == [spec.version] * 2 and not fleet.actuator.status.is_updating

    run(scenario())


def test_without_room_a_failed_update_gives_the_place_back_to_the_old_version() -> None:
    async def scenario() -> None:
        fleet = FakeFleet(max_replicas=2)
        await fleet.ready(2)
        fleet.cluster.broken.add(NEW.version)
        fleet.cluster.has_delay = True
        fleet.actuator.update(NEW)
        await fleet.run(2)
        await fleet.decide(2)
        await fleet.run(2)
        assert fleet.versions() == [OLD.version], "the place is kept for the new replica"
        fleet.cluster.has_delay = False
        await fleet.run(20)
        assert fleet.versions() == [OLD.version] * 2 and fleet.actuator.status.update_failure

    run(scenario())


def test_the_only_replica_comes_back_after_a_failed_update_that_had_to_stop_it() -> None:
    async def scenario() -> None:
        fleet = FakeFleet(max_replicas=1)
        await fleet.ready(1)
        fleet.cluster.broken.add(NEW.version)
        fleet.actuator.update(NEW)
        await fleet.run(2)
        assert fleet.actuator.status.is_updating, "it is not complete without a new replica that serves"
        await fleet.run(20)
        assert fleet.versions() == [OLD.version] and fleet.router.serving

    run(scenario())


def test_during_an_update_that_does_not_start_the_pool_grows_with_the_old_version_and_shrinks() -> None:
    async def scenario() -> None:
        fleet = FakeFleet(max_replicas=6)
        await fleet.ready(2)
        fleet.actuator.update(NEW)
        await fleet.actuator.step()
        fleet.silent.add("r3")  # it loads its model
        await fleet.decide(4)
        await fleet.run(3)
        assert fleet.versions().count(OLD.version) == 4 and fleet.versions().count(NEW.version) == 1
        await fleet.decide(1, "r1", "r2", "r3")
        await fleet.run(5)
        assert fleet.versions() == [NEW.version, OLD.version]
        fleet.silent.clear()
        await fleet.run(5)
        assert fleet.versions() == [NEW.version] and not fleet.actuator.status.is_updating

    run(scenario())


def test_after_a_failed_update_the_pool_grows_and_shrinks_with_the_old_version() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(1)
        fleet.cluster.broken.add(NEW.version)
        fleet.actuator.update(NEW)
        await fleet.run(20)
        await fleet.decide(3)
        await fleet.run()
        assert fleet.versions() == [OLD.version] * 3
        await fleet.decide(1, "r1", "r7")
        await fleet.run(2)
        assert fleet.versions() == [OLD.version]

    run(scenario())


def test_a_start_that_takes_too_long_stops_the_update() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(1)
        fleet.actuator.update(NEW)
        fleet.silent.add("r2")
        await fleet.run(102)
        assert "r2 is stuck: it was not ready within 100 s" in fleet.actuator.status.update_failure
        assert fleet.versions() == [OLD.version] and fleet.cluster.num_started == 2

    run(scenario())


def test_replicas_that_failed_now_and_then_do_not_stop_an_update_that_goes_on() -> None:
    async def scenario() -> None:
        fleet = FakeFleet(max_replicas=8)
        await fleet.ready(5)
        fleet.actuator.update(NEW)
        for _ in range(20):  # between two that start, each second one fails
            await fleet.run()
            newest = max(fleet.cluster.replicas.values(), key=lambda each: int(each.replica_id[1:]))
            if newest.version == NEW.version and int(newest.replica_id[1:]) % 2 and newest.state is RUNNING:
                fleet.cluster.set_state(newest.replica_id, FAILED, "by chance")
        assert not fleet.actuator.status.update_failure

    run(scenario())


def test_replicas_that_a_former_process_started_with_other_options_are_replaced_one_by_one() -> None:
    async def scenario() -> None:
        fleet = FakeFleet(spec=NEW)
        fleet.cluster.add("a")
        fleet.cluster.add("b")
        most = 0
        for _ in range(8):
            await fleet.run()
            most = max(most, len(fleet.versions()))
        assert fleet.versions() == [NEW.version] * 2 and most == 3, "without a decision the number stays"

    run(scenario())


def test_a_former_processs_replicas_stay_where_the_options_of_this_one_do_not_work() -> None:
    async def scenario() -> None:
        fleet = FakeFleet(spec=NEW)
        fleet.cluster.add("a")
        fleet.cluster.broken.add(NEW.version)
        await fleet.run(20)
        assert fleet.router.serving == ("http://a",) and fleet.cluster.num_started == MAX_FAILURES
        assert fleet.actuator.status.update_failure and not fleet.actuator.status.is_updating

    run(scenario())


def test_an_update_never_costs_more_than_the_budget() -> None:
    async def scenario() -> None:
        budget = BudgetConfig(cost_per_hour=2.5, prices={"": 1.0})
        fleet = FakeFleet(budget=budget)
        await fleet.ready(2)
        fleet.actuator.update(NEW)
        for _ in range(12):
            await fleet.actuator.step()
            assert len(fleet.cluster.replicas) <= 2
            await fleet.run()
        assert fleet.versions() and set(fleet.versions()) == {NEW.version}

    run(scenario())


def test_what_an_update_cannot_do_now_is_said() -> None:
    async def scenario() -> None:
        fleet = FakeFleet()
        await fleet.ready(2)
        fleet.cluster.is_full = True
        fleet.actuator.update(NEW)
        with pytest.raises(Exception, match="no GPU is free"):
            await fleet.actuator.step()
        status = fleet.actuator.status
        assert status.is_updating and "cannot go on now: no GPU is free" in status.update_failure
        fleet.cluster.is_full = False
        await fleet.actuator.step()
        assert not status.update_failure and ReplicaState.STARTING in [
            each.state for each in (await fleet.actuator.sample()).replicas
        ]

    run(scenario())


@pytest.mark.parametrize("is_first_broken", [False, True])
def test_an_update_before_the_first_replica_is_ready(is_first_broken: bool) -> None:
    """The version before may be right: it is given up only if it fails, too."""

    async def scenario() -> None:
        fleet = FakeFleet(max_replicas=1)
        await fleet.decide(1)
        fleet.silent.add("r1")
        fleet.cluster.broken |= {NEW.version, *({OLD.version} if is_first_broken else ())}
        fleet.actuator.update(NEW)
        await fleet.run(30)
        assert fleet.actuator.spec == (NEW if is_first_broken else OLD)
        assert fleet.actuator.status.update_failure
        assert bool(fleet.router.serving) is not is_first_broken
        good = ReplicaSpec(model="good")
        fleet.actuator.update(good)
        await fleet.run(10)
        assert fleet.versions() == [good.version] and fleet.router.serving

    run(scenario())


def test_a_version_before_that_hangs_at_its_start_is_given_up() -> None:
    async def scenario() -> None:
        fleet = FakeFleet(max_replicas=2)
        await fleet.decide(2)
        fleet.silent |= {"r1", "r2"}
        await fleet.run(90)
        fleet.actuator.update(NEW)  # there is no room: one goes, and the new one is the third
        await fleet.run(30)
        assert fleet.versions() == [NEW.version] * 2

    run(scenario())
