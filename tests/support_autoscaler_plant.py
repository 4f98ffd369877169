"""Plant: a small fluid model of a pool of replicas, which the autoscaler measures and changes in closed loop."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.decide import decide
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.history import PoolHistory
from chairlift.autoscaler.pool_sample import PoolSample, ReplicaSample
from chairlift.core.load_report import ReplicaState

STARTING, READY, DRAINING = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING
WALL_START = 1_767_225_600.0  # 2026-01-01 00:00 UTC


@dataclass
class PlantReplica:
    """A replica of the plant; it is ready once it is as old as its cold start."""

    replica_id: str
    replica_type: str
    cold_start_seconds: float
    age_seconds: float = 0.0
    drain_left: float | None = None

    @property
    def state(self) -> ReplicaState:
        """Its state."""
        if self.drain_left is not None:
            return DRAINING
        return READY if self.age_seconds >= self.cold_start_seconds else STARTING


@dataclass(frozen=True)
class Tick:
    """One moment of a run: the decision, and the pool as it was before."""

    at_seconds: float
    rate: float
    decision: Decision
    num_ready: int
    num_starting: int
    num_draining: int
    wait_seconds: float
    removed_states: tuple[ReplicaState, ...]


@dataclass
class Plant:
    """A pool that serves a rate of requests.

    Requests run `service_seconds` on average and at most `max_running` on a replica; the others wait in one queue.
    """

    config: AutoscalerConfig
    seed: int = 0
    service_seconds: float = 8.0
    max_running: float = 16.0
    cold_start_seconds: float = 40.0
    drain_seconds: float = 10.0
    num_replicas: int = 1
    replicas: list[PlantReplica] = field(default_factory=list)
    queue: float = 0.0
    running: float = 0.0
    held: float = 0.0
    now: float = 1000.0
    reports: Callable[[float, int], bool] = lambda at_seconds, number: True
    history: PoolHistory = field(init=False)
    ticks: list[Tick] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history = PoolHistory(self.config)
        self.random = random.Random(self.seed)
        self.rate = 0.0
        self._num_started = 0
        self.add_ready(self.num_replicas)

    def add_ready(self, count: int) -> None:
        """Add replicas that have started long ago."""
        self.start(count)
        for replica in self.replicas[-count:]:
            replica.age_seconds = replica.cold_start_seconds + 1

    def start(self, count: int) -> None:
        """Start replicas."""
        for _ in range(count):
            self._num_started += 1
            seconds = self.cold_start_seconds * self.random.uniform(0.8, 1.2)
            self.replicas.append(PlantReplica(f"r{self._num_started}", self.config.budget.replica_type, seconds))

    def kill(self, count: int) -> None:
        """End ready replicas at once; their requests wait again."""
        victims = [each for each in self.replicas if each.state is READY][:count]
        num_ready = self.num_in_state(READY)
        if victims:
            lost = self.running * len(victims) / num_ready
            self.running, self.queue = self.running - lost, self.queue + lost
        self.replicas = [each for each in self.replicas if each not in victims]

    def num_in_state(self, state: ReplicaState) -> int:
        """Return how many replicas are in a state."""
        return sum(each.state is state for each in self.replicas)

    def wait_seconds(self) -> float:
        """Return the time that a request of now would wait."""
        places = self.num_in_state(READY) * self.max_running
        return self.queue / (places / self.service_seconds) if places else 0.0

    def advance(self, rate: float, seconds: float) -> None:
        """Let time pass at a rate of requests."""
        self.now += seconds
        for replica in self.replicas:
            replica.age_seconds += seconds
            if replica.drain_left is not None:
                replica.drain_left -= seconds
        self.replicas = [each for each in self.replicas if each.drain_left is None or each.drain_left > 0]
        places = self.num_in_state(READY) * self.max_running
        num_parts = min(400, max(1, math.ceil(4 * seconds / self.service_seconds)))
        part = min(1.0, seconds / num_parts / self.service_seconds)
        for _ in range(num_parts):
            self.queue += rate * seconds / num_parts
            self.running -= self.running * part
            admitted = min(self.queue, max(0.0, places - self.running))
            self.running, self.queue = self.running + admitted, self.queue - admitted
        self.running = 0.0 if self.running < 0.01 else self.running
        self.held = self.queue if not places else 0.0
        self.rate = 0.5 * (self.rate + rate) if self.rate > 0.001 else rate

    def sample(self) -> PoolSample:
        """Return what the autoscaler sees."""
        ready = max(1, self.num_in_state(READY))
        samples = []
        for replica in self.replicas:
            load = {}
            if replica.state is READY and self.reports(self.now, int(replica.replica_id[1:])):
                load = {
                    "waiting_requests": (self.queue - self.held) / ready,
                    "waiting_tokens": (self.queue - self.held) * 100 / ready,
                    "running_requests": self.running / ready,
                    "expected_wait_seconds": self.wait_seconds(),
                    "kv_usage_ratio": min(1.0, 0.8 * self.running / ready / self.max_running),
                    "max_running_requests": self.max_running,
                    "prefill_tokens_per_second": 5000.0,
                    "cpu_ratio": min(1.0, self.running / ready / self.max_running),
                }
            samples.append(
                ReplicaSample(
                    replica_id=replica.replica_id,
                    state=replica.state,
                    age_seconds=replica.age_seconds,
                    replica_type=replica.replica_type,
                    **load,
                )
            )
        return PoolSample(
            at_seconds=self.now, wall_seconds=WALL_START + self.now, replicas=tuple(samples), held_requests=self.held,
            held_tokens=self.held * 100, requests_per_second=self.rate,
        )  # fmt: skip

    def step(self, rate: float) -> Tick:
        """Let one interval pass, decide, and carry the decision out."""
        self.advance(rate, self.config.interval_seconds)
        return self.decide(rate)

    def decide(self, rate: float = 0.0) -> Tick:
        """Decide and carry the decision out."""
        self.history.add(self.sample())
        decision = decide(self.history, self.config, self.now)
        self.history.record(decision)
        states = {each.replica_id: each.state for each in self.replicas}
        tick = Tick(
            self.now, rate, decision, self.num_in_state(READY), self.num_in_state(STARTING),
            self.num_in_state(DRAINING), self.wait_seconds(), tuple(states[name] for name in decision.remove),
        )  # fmt: skip
        self.ticks.append(tick)
        self.apply(decision)
        return tick

    def apply(self, decision: Decision) -> None:
        """Carry a decision out."""
        ready = self.num_in_state(READY)
        for replica in [each for each in self.replicas if each.replica_id in decision.remove]:
            if replica.state is STARTING or not ready:
                self.replicas.remove(replica)
            else:
                self.running -= self.running / ready  # it ends its own requests
                ready -= 1
                replica.drain_left = self.drain_seconds
        self.start(max(0, decision.target - decision.current))

    def run(self, rate_at: Callable[[float], float], seconds: float) -> list[Tick]:
        """Run for a time at the rates of a function of the seconds since its beginning; return the ticks."""
        start = self.now
        first = len(self.ticks)
        while self.now - start < seconds:
            self.step(max(0.0, rate_at(self.now - start)))
        return self.ticks[first:]


def num_needed(rate: float, plant: Plant) -> float:
    """Return the replicas that hold a rate at their target."""
    ratio = plant.config.targets.concurrency_ratio or 1.0
    return rate * plant.service_seconds / (plant.max_running * ratio)


def reversals(ticks: list[Tick]) -> list[float]:
    """Return the times at which the target changed its direction."""
    changes = [each for each in ticks if each.decision.has_change]
    ups = [each.decision.target > each.decision.current for each in changes]
    return [changes[index].at_seconds for index in range(1, len(changes)) if ups[index] != ups[index - 1]]
