"""simulate_fleet: runs clients, router, replicas and a scaling rule in simulated time, one event after the other.

request arrives ──► SimRouter.route ──► ServingModel ──► first token, end ──► FleetResult
tick ──► PoolSample ──► ScalingRule.decide ──► replicas start (cold start ──► ready) or drain (──► gone)
"""

import math
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter
from random import Random
from typing import Literal

from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.bench.fleet_simulation.fleet_replica import FleetReplica
from chairlift.bench.fleet_simulation.fleet_result import FleetResult, FleetState
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import (
    RequestSource,
    ScalingRule,
    ScalingTarget,
    SimRequest,
)
from chairlift.bench.fleet_simulation.sim_router import SimRouter
from chairlift.bench.report.percentiles import percentile
from chairlift.core.load_report import ReplicaState
from chairlift.router.attempts.attempt_history import MAX_MOVES
from chairlift.router.replicas.move_decision import READY_SECONDS, ROUND_SECONDS, SETTLE_SECONDS

RECENT_REQUESTS = 1000
RECENT_SECONDS = 30.0
"""The latencies that an autoscaler sees are of the last requests of this time, at most so many."""

NUM_STATES = 200
"""Moments at which the state of the fleet is recorded."""

_age = attrgetter("arrived_at")

Event = FleetReplica | Literal["moves"] | None
"""A replica's engine has an event or the replica becomes ready; "moves": requests move to replicas that have become
ready recently; None: a tick of the scaling rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What is simulated besides clients and scaling.

    Attributes:
        machine: model and settings of every replica.
        policy: name of the routing policy.
        initial_replicas: replicas that are ready at the start.
        max_replicas: most replicas, those that drain included.
        cold_start_seconds: least and most seconds from a replica's start until it serves.
        quantile: quantile of the latencies that the scaling rule sees, in percent.
        slo: limits of a good request in seconds: ttft, tpot, itl (longest gap), e2e.
        seed: seed of the policy and of the cold starts.
    """

    machine: SimReplicaSettings = field(default_factory=SimReplicaSettings)
    policy: str = "prefix"
    initial_replicas: int = 1
    max_replicas: int = 1_000_000
    cold_start_seconds: tuple[float, float] = (60.0, 60.0)
    quantile: float = 95.0
    slo: dict[str, float] = field(default_factory=dict)
    seed: int = 0


def simulate_fleet(source: RequestSource, rule: ScalingRule, options: FleetOptions, seconds: float) -> FleetResult:
    """Simulate until the last request has ended; equal arguments give an equal result.

    Replicas cost until `seconds`, which is the time of the load; the ends of the last requests come after it.
    """
    return _FleetRun(source, rule, options, seconds).run_to_end()


class _FleetRun:
    """State of one simulation."""

    def __init__(self, source: RequestSource, rule: ScalingRule, options: FleetOptions, seconds: float) -> None:
        self._source, self._rule, self._options = source, rule, options
        self._router, self._rng = SimRouter(options.policy, options.seed), Random(f"cold starts {options.seed}")
        self._result = FleetResult(options.slo, seconds)
        self._replicas: dict[str, FleetReplica] = {}  # those that exist, by their numbers
        self._by_request: dict[int, FleetReplica] = {}
        self._waiting: dict[int, SimRequest] = {}  # sent, and without a first token
        self._ready_until: dict[str, float] = {}  # replicas to which requests move
        self._next_moves_at = math.inf
        self._order, self._events = count(), list[tuple[float, int, Event]]()
        self._num_started = self._num_arrived = self._num_waiting = 0
        self._sampled_at, self._num_sampled = 0.0, 0
        self._latencies: deque[tuple[float, float, float]] = deque(maxlen=RECENT_REQUESTS)
        self._state_seconds, self._next_state = max(seconds / NUM_STATES, 1e-9), 0.0
        for _ in range(min(options.initial_replicas, options.max_replicas)):
            self._set_ready(self._start(0.0), 0.0)
        self._push(0.0, None)

    def run_to_end(self) -> FleetResult:
        events, source = self._events, self._source
        while source.next_at < math.inf or self._num_open:
            if source.next_at <= events[0][0]:
                self._handle_arrival(source.take())
                continue
            at, _, event = heappop(events)
            if event is None:
                self._handle_tick(at)
            elif event == "moves":
                if at == self._next_moves_at:  # else an earlier round has replaced it
                    self._move_waiting(at)
            elif event.state is ReplicaState.STARTING:
                self._set_ready(event, at)
            elif at == event.model.next_event_at:  # else the event was moved to an earlier time
                self._handle_step(event, at)
        for replica in self._replicas.values():
            self._result.record_replica(replica, math.inf)
        return self._result

    @property
    def _num_open(self) -> int:
        return len(self._by_request) + len(self._router.held)

    def _push(self, at: float, event: Event) -> None:
        heappush(self._events, (at, next(self._order), event))

    # -- requests --------------------------------------------------------------------------------------------------

    def _handle_arrival(self, request: SimRequest) -> None:
        self._num_arrived += 1
        self._num_waiting += 1
        self._result.record_waiting(self._num_waiting)
        is_first_held = not self._router.held
        if not self._route(request, request.arrived_at) and is_first_held:
            self._decide(request.arrived_at)  # a held request wakes the fleet

    def _route(self, request: SimRequest, now: float) -> bool:
        """Send a request to a replica; return False if it is held."""
        replica = self._router.route(request, now)
        if replica is None:
            return False
        self._by_request[request.index], self._waiting[request.index] = replica, request
        self._push(replica.model.next_event_at, replica)
        return True

    def _schedule_moves(self, at: float) -> None:
        if at < self._next_moves_at:
            self._next_moves_at = at
            self._push(at, "moves")

    def _move_waiting(self, now: float) -> None:
        """Move requests to the replicas that have become ready, as the production router does."""
        self._next_moves_at = math.inf
        self._ready_until = {each: until for each, until in self._ready_until.items() if until > now}
        if not self._ready_until:
            return
        self._schedule_moves(now + ROUND_SECONDS)
        waiting: dict[str, list[SimRequest]] = {}
        for request in sorted(self._waiting.values(), key=_age):
            if request.num_moves < MAX_MOVES:
                waiting.setdefault(self._by_request[request.index].replica_id, []).append(request)
        for request, replica in self._router.choose_moves(self._ready_until, waiting, now) if waiting else ():
            if self._router.move(request, self._by_request[request.index], replica, now):
                self._by_request[request.index] = replica
                self._push(replica.model.next_event_at, replica)

    def _handle_step(self, replica: FleetReplica, now: float) -> None:
        outputs = replica.model.advance()
        for request in outputs.first_tokens:
            replica.record_first_token(request)
            self._num_waiting -= 1
            del self._waiting[request.index]
        for request in outputs.finished:
            del self._by_request[request.index]
            replica.record_end(request, now)
            self._router.record_answer(replica, request)
            self._latencies.append(self._result.record_request(request, now))
            self._source.record_end(request, now)
        if replica.model.next_event_at < math.inf:
            self._push(replica.model.next_event_at, replica)
        elif replica.state is ReplicaState.DRAINING and not replica.open_requests:
            self._end(replica, now)

    # -- replicas --------------------------------------------------------------------------------------------------

    def _start(self, now: float) -> FleetReplica:
        number = self._num_started
        self._num_started += 1
        machine = self._options.machine
        replica = FleetReplica(
            f"replica-{number:07}", machine.make_model(number), now, prefill_speed=machine.prefill_speed,
            max_running=machine.config.max_running_sequences,
        )  # fmt: skip
        self._replicas[replica.replica_id] = replica
        return replica

    def _set_ready(self, replica: FleetReplica, now: float) -> None:
        if replica.state is not ReplicaState.STARTING:
            return
        replica.state = ReplicaState.READY
        self._ready_until[replica.replica_id] = now + READY_SECONDS
        self._schedule_moves(now + SETTLE_SECONDS)
        held = self._router.add(replica)
        for request in held:
            self._route(request, now)

    def _drain(self, replica: FleetReplica, now: float) -> None:
        if replica.state is ReplicaState.READY:
            self._router.remove(replica)
        replica.state = ReplicaState.DRAINING
        if not replica.open_requests:
            self._end(replica, now)

    def _end(self, replica: FleetReplica, now: float) -> None:
        replica.state = ReplicaState.STOPPED
        del self._replicas[replica.replica_id]
        self._result.record_replica(replica, now)

    # -- scaling ---------------------------------------------------------------------------------------------------

    def _handle_tick(self, now: float) -> None:
        self._decide(now)
        if now >= self._next_state:
            self._next_state = now + self._state_seconds
            states = [replica.state for replica in self._replicas.values()]
            self._result.states.append(FleetState(
                now, states.count(ReplicaState.STARTING), states.count(ReplicaState.READY),
                states.count(ReplicaState.DRAINING), self._num_waiting, self._num_arrived,
            ))  # fmt: skip
        self._push(now + self._rule.interval_seconds, None)

    def _decide(self, now: float) -> None:
        target = self._rule.decide(self._sample(now))
        live = [each for each in self._replicas.values() if each.state is not ReplicaState.DRAINING]
        goal = max(0, min(target.num_replicas, len(live) + self._options.max_replicas - len(self._replicas)))
        self._result.record_scaling(now, len(live), goal)
        if goal < len(live):
            for replica in self._to_remove(live, len(live) - goal, target):
                self._drain(replica, now)
        for _ in range(goal - len(live)):
            self._push(now + self._rng.uniform(*self._options.cold_start_seconds), self._start(now))

    def _to_remove(self, live: list[FleetReplica], num: int, target: ScalingTarget) -> list[FleetReplica]:
        """Return the named replicas, then those that start, then the youngest."""
        named = [self._replicas[name] for name in target.remove if name in self._replicas]
        named = [replica for replica in named if replica in live]
        rest = [replica for replica in live if replica not in named] if len(named) < num else []
        rest.sort(key=lambda each: (each.state is ReplicaState.READY, -each.started_at))
        return (named + rest)[:num]

    def _sample(self, now: float) -> PoolSample:
        router, latencies = self._router, self._latencies
        if not self._rule.needs_sample:
            return PoolSample(at_seconds=now, wall_seconds=now)
        while latencies and latencies[0][0] < now - RECENT_SECONDS:
            latencies.popleft()
        seconds, num_arrived = now - self._sampled_at, self._num_arrived - self._num_sampled
        self._sampled_at, self._num_sampled = now, self._num_arrived
        return PoolSample(
            at_seconds=now, wall_seconds=now,
            replicas=tuple([replica.sample(now) for replica in self._replicas.values()]),
            held_requests=len(router.held), held_tokens=router.held_tokens,
            requests_per_second=num_arrived / seconds if seconds > 0 else None,
            ttft_seconds=self._quantile([each[1] for each in latencies]),
            itl_seconds=self._quantile([each[2] for each in latencies]),
        )  # fmt: skip

    def _quantile(self, seconds: list[float]) -> float | None:
        return percentile(sorted(seconds), self._options.quantile) if seconds else None
