"""PoolActuator under random updates, decisions, silences and failures: it keeps its limits, and comes to rest."""

import random

import pytest

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import PlacementState
from support_fleet import OLD, FakeFleet
from support_server import run

SPECS = [OLD, *(ReplicaSpec(model=name) for name in ("good", "better", "broken", "hanging"))]
BROKEN, HANGING = SPECS[3].version, SPECS[4].version
RUNNING, FAILED, STOPPING = PlacementState.RUNNING, PlacementState.FAILED, PlacementState.STOPPING


class RandomFleet:
    """A fleet to which things happen by chance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fleet = FakeFleet(max_replicas=self.rng.randint(1, 5))
        self.fleet.cluster.broken.add(BROKEN)
        self.target, self.num_hung = self.rng.randint(1, self.max_replicas), 0

    @property
    def max_replicas(self) -> int:
        return self.fleet.actuator._limits.max_replicas

    async def step(self) -> None:
        """Let time pass, and check what must always hold."""
        fleet, cluster = self.fleet, self.fleet.cluster
        before = {name for name, each in cluster.replicas.items() if each.state is RUNNING}
        fleet.silent |= {name for name, each in cluster.replicas.items() if each.version == HANGING}
        num_calls = len(cluster.calls)
        fleet.clock.advance(self.rng.choice([0.2, 1.0, 5.0]))
        if self.rng.random() < 0.7:
            cluster.end_stopped()
        await fleet.actuator.step()
        assert sum(each.state is not FAILED for each in cluster.replicas.values()) <= self.max_replicas
        stopped = {name for call in cluster.calls[num_calls:] if call[0] == "stop" for name in call[1:]} & before
        silent = stopped & fleet.silent - {n for n in stopped if cluster.replicas[n].version == HANGING}
        assert len(silent) <= 1, "one stuck replica at a time"
        fleet.report(*(name for name in cluster.replicas if name not in fleet.silent))

    async def happen(self) -> None:
        """Let one thing happen."""
        fleet, rng = self.fleet, self.rng
        live = [each.replica_id for each in (await fleet.actuator.sample()).replicas if each.state.value != "draining"]
        match rng.randrange(8):
            case 0:
                fleet.actuator.update(rng.choice(SPECS))
            case 1 | 2:
                self.target = rng.randint(1, self.max_replicas)
                await fleet.decide(self.target, *live[: max(0, len(live) - self.target)])
            case 3 if live:
                fleet.silence(rng.choice(live))
            case 4 if live:
                fleet.cluster.set_state(rng.choice(live), FAILED, "killed")
            case 5 if live:
                fleet.router.open_requests[f"http://{rng.choice(live)}"] = 1
            case 6:
                fleet.router.open_requests.clear()

    async def rest(self) -> None:
        """Let nothing more happen, and the autoscaler hold its target."""
        fleet = self.fleet
        fleet.router.open_requests.clear()
        fleet.silent.clear()
        for _ in range(100):
            await self.step()
            live = [each for each in (await fleet.actuator.sample()).replicas if each.state.value != "draining"]
            if len(live) != self.target:
                await fleet.decide(self.target, *(each.replica_id for each in live[self.target :]))


@pytest.mark.parametrize("seed", [2, 11, 17, 214, 222])
def test_limits_hold_and_a_good_update_in_the_end_gives_the_target(seed: int) -> None:
    async def scenario() -> None:
        chance = RandomFleet(seed)
        await chance.fleet.decide(chance.target)
        for _ in range(80):
            await chance.step()
            if chance.rng.random() < 0.3:
                await chance.happen()
        chance.fleet.actuator.update(SPECS[1])
        await chance.rest()
        status = chance.fleet.actuator.status
        assert not status.is_updating and status.update_failure == ""
        assert chance.fleet.versions() == [SPECS[1].version] * chance.target

    run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_a_broken_update_leaves_the_version_that_served(seed: int) -> None:
    async def scenario() -> None:
        chance = RandomFleet(seed)
        await chance.fleet.decide(chance.target)
        await chance.rest()
        chance.fleet.actuator.update(SPECS[3])
        for _ in range(30):
            num_serving = len(set(chance.fleet.router.serving) - chance.fleet.router.draining)
            assert num_serving >= min(chance.target, chance.max_replicas - 1)
            await chance.step()
            if chance.rng.random() < 0.3:
                chance.target = chance.rng.randint(1, chance.target)
                await chance.fleet.decide(chance.target)
        await chance.rest()
        assert chance.fleet.versions() == [OLD.version] * chance.target
        assert chance.fleet.actuator.spec == OLD and "no such model" in chance.fleet.actuator.status.update_failure

    run(scenario())
