"""Parts of fleets in tests: a cluster, a router and load reports that do what the test says, on a fake clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.core.clock import FakeClock
from chairlift.core.cluster_errors import ClusterFailed
from chairlift.core.load_report import ReplicaState
from chairlift.fleet.pool_actuator import PoolActuator
from chairlift.fleet.pool_limits import PoolLimits
from chairlift.fleet.replica_tracker import ReplicaTracker
from chairlift.router.health.replica_load import ReplicaLoad

OLD, NEW = ReplicaSpec(model="old"), ReplicaSpec(model="new")


@dataclass(slots=True)
class FakeCluster:
    """A cluster whose replicas run at once, unless the test says otherwise.

    Attributes:
        broken: versions whose replicas end as soon as they are listed.
        is_pending: replicas that are started from now on have no machine yet.
        has_delay: a failed replica holds its place, and `scale` starts none for it.
        denied: replicas that cannot be stopped.
        is_full: no replica can be started.
    """

    replicas: dict[str, ClusterReplica] = field(default_factory=dict)
    calls: list[tuple[object, ...]] = field(default_factory=list)
    is_down: bool = False
    num_started: int = 0
    broken: set[str] = field(default_factory=set)
    is_pending: bool = False
    has_delay: bool = False
    denied: set[str] = field(default_factory=set)
    is_full: bool = False
    replaced: set[str] = field(default_factory=set)

    async def list(self) -> Sequence[ClusterReplica]:
        self.check()
        for name, each in self.replicas.items():
            if each.version in self.broken and each.state is PlacementState.RUNNING:
                self.set_state(name, PlacementState.FAILED, "exit code 3: no such model")
        return tuple(self.replicas.values())

    async def start(self, spec: ReplicaSpec, count: int = 1) -> None:
        self.check()
        self.replaced |= {name for name, each in self.replicas.items() if each.version == spec.version}
        self._start(spec, count)

    def _start(self, spec: ReplicaSpec, count: int) -> None:
        if self.is_full:
            raise ClusterFailed("no GPU is free")
        self.calls.append(("start", count))
        for _ in range(count):
            self.num_started += 1
            self.add(f"r{self.num_started}", spec.version)

    def add(self, name: str, version: str = OLD.version, age_seconds: float = 0.0) -> None:
        """Have one replica more."""
        self.replicas[name] = ClusterReplica(
            replica_id=name, url=f"http://{name}", version=version, age_seconds=age_seconds,
            state=PlacementState.PENDING if self.is_pending else PlacementState.RUNNING,
            node="" if self.is_pending else "n",
        )  # fmt: skip

    async def stop(self, replica_ids: Sequence[str]) -> None:
        self.check()
        if self.denied & set(replica_ids):
            raise ClusterFailed("the replica cannot be stopped")
        self.calls.append(("stop", *replica_ids))
        for name in replica_ids:
            self.replaced.add(name)
            if name in self.replicas and self.replicas[name].state is not PlacementState.FAILED:
                self.set_state(name, PlacementState.STOPPING)

    async def scale(self, spec: ReplicaSpec, target: int, *, remove: Sequence[str] = ()) -> None:
        self.check()
        runs = (PlacementState.PENDING, PlacementState.RUNNING)
        missing = target - sum(each.state in runs for each in self.replicas.values())
        waiting = [
            name for name, each in self.replicas.items()
            if each.state is PlacementState.FAILED and each.version == spec.version and name not in self.replaced
        ]  # fmt: skip
        if self.has_delay:
            missing -= len(waiting)
        elif missing > 0:
            self.replaced.update(waiting)
        if missing > 0:
            self._start(spec, missing)

    async def close(self) -> None:
        self.calls.append(("close",))

    def check(self) -> None:
        if self.is_down:
            raise ClusterFailed("the cluster is down")

    def set_state(self, name: str, state: PlacementState, reason: str = "") -> None:
        self.replicas[name] = replace(self.replicas[name], state=state, reason=reason)

    def end_stopped(self) -> None:
        """Let the processes that were asked to stop end."""
        gone = [name for name, each in self.replicas.items() if each.state is PlacementState.STOPPING]
        for name in gone:
            del self.replicas[name]


@dataclass(slots=True)
class FakeRouter:
    """A router that knows what it was asked for."""

    serving: tuple[str, ...] = ()
    draining: set[str] = field(default_factory=set)
    open_requests: dict[str, int] = field(default_factory=dict)

    def set_serving(self, urls: tuple[str, ...]) -> None:
        self.serving = urls

    def drain(self, url: str) -> None:
        self.draining.add(url)

    def undrain(self, url: str) -> None:
        self.draining.discard(url)

    def num_open_requests(self, url: str) -> int:
        return self.open_requests.get(url, 0)

    async def measure(self, sample: PoolSample) -> PoolSample:
        return replace(sample, held_requests=7.0)


@dataclass(slots=True)
class FakeLoads:
    """Load reports by URL; a replica without one does not answer."""

    loads: dict[str, ReplicaLoad] = field(default_factory=dict)

    async def read(self, urls: Sequence[str], now: float) -> Mapping[str, ReplicaLoad]:
        return {url: self.loads[url] for url in urls if url in self.loads}


class FakeFleet:
    """An actuator over all of these.

    Attributes:
        actuator: what is tested.
        silent: replicas that do not answer.
    """

    def __init__(
        self, *, max_replicas: int = 4, spec: ReplicaSpec = OLD, cluster: FakeCluster | None = None, **limits: Any
    ) -> None:
        self.cluster, self.router, self.reader = cluster or FakeCluster(), FakeRouter(), FakeLoads()
        self.clock = FakeClock()
        self.silent: set[str] = set()
        self.actuator = PoolActuator(
            self.cluster, self.router, self.reader, spec,
            PoolLimits(max_replicas=max_replicas, **{"drain_seconds": 30.0, **limits}), self.clock,
            tracker=ReplicaTracker(unresponsive_seconds=20, start_seconds=100), wall_seconds=lambda: 5.0,
        )  # fmt: skip

    def report(self, *names: str, state: ReplicaState = ReplicaState.READY, **numbers: float) -> None:
        """Let replicas report their load."""
        for name in names:
            self.reader.loads[f"http://{name}"] = ReplicaLoad(at_seconds=0.0, state=state, **numbers)  # type: ignore[arg-type]

    def silence(self, *names: str) -> None:
        """Let replicas answer no more."""
        self.silent |= set(names)
        for name in names:
            self.reader.loads.pop(f"http://{name}", None)

    def versions(self, *states: PlacementState) -> list[str]:
        """Return the versions of the replicas in these states, of the running ones without an argument."""
        return [
            each.version for each in self.cluster.replicas.values()
            if each.state in (states or (PlacementState.RUNNING,))
        ]  # fmt: skip

    async def decide(self, target: int, *remove: str) -> None:
        """Apply a decision after a sample, as the controller does."""
        sample = await self.actuator.sample()
        current = sample.num_in_state(ReplicaState.STARTING, ReplicaState.READY)
        await self.actuator.apply(Decision(at_seconds=0.0, target=target, current=current, remove=remove))

    async def ready(self, target: int) -> None:
        """Have `target` replicas that serve."""
        await self.decide(target)
        self.report(*self.cluster.replicas)
        await self.actuator.step()

    async def run(self, num_steps: int = 1, seconds: float = 1.0) -> None:
        """Let the replicas that run report, unless they are silent, and watch the pool."""
        for _ in range(num_steps):
            self.clock.advance(seconds)
            self.cluster.end_stopped()
            await self.actuator.step()
            self.report(*(name for name in self.cluster.replicas if name not in self.silent))
            await self.actuator.step()
