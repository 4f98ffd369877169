"""RequestMover: moves requests that wait for their first token to replicas that have just become ready.

    Transition to HEALTHY ──> SETTLE_SECONDS ──> choose_moves ──> RequestProxy.move ──> ReplicaAvailable
                                       ^── ROUND_SECONDS ──┘

Replicas that become ready together share what waits.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Protocol

from chairlift.router.health.health_state import HealthState, Transition
from chairlift.router.replica_set import ReplicaSet
from chairlift.router.replicas.move_decision import (
    READY_SECONDS,
    ROUND_SECONDS,
    SETTLE_SECONDS,
    ReplicaQueue,
    choose_moves,
)
from chairlift.router.replicas.replica_status import ReplicaStatus
from chairlift.router.replicas.routed_replica import MAX_REPORT_AGE_SECONDS

log = logging.getLogger(__name__)


class MovableRequest(Protocol):
    """A request as its mover sees it."""

    @property
    def waiting_place(self) -> tuple[str, str, float] | None:
        """Replica and model with which the request waits for a first token, and since when; None if it may not move."""
        ...

    def move(self, replica_id: str) -> None:
        """Send the request to a replica, and leave the one where it waits."""
        ...


class RequestMover:
    """Listens to the transitions of a replica set. Belongs to its event loop."""

    def __init__(
        self, replicas: ReplicaSet, requests: Collection[MovableRequest], now: Callable[[], float],
        call_later: Callable[[float, Callable[[], object]], object],
    ) -> None:  # fmt: skip
        """`requests` are those that are open, as they change; `call_later` calls a function after some seconds."""
        self._replicas, self._requests, self._now, self._call_later = replicas, requests, now, call_later
        self._ready_until: dict[str, float] = {}
        self._next_round_at = inf

    def on_transition(self, transition: Transition) -> None:
        """Note that a replica has become ready; requests move to it soon."""
        if transition.new is not HealthState.HEALTHY:
            return
        now = self._now()
        self._ready_until[transition.replica_id] = now + READY_SECONDS
        # A round that comes soon serves this replica, too.
        if self._next_round_at > now + SETTLE_SECONDS:
            self._schedule(now, SETTLE_SECONDS)

    def close(self) -> None:
        """Move nothing any more."""
        self._ready_until.clear()

    def _schedule(self, now: float, seconds: float) -> None:
        """Put the next round off, which replaces one that was to come later."""
        at = self._next_round_at = now + seconds
        self._call_later(seconds, lambda: self._run_round(at))

    def _run_round(self, at: float) -> None:
        # Another round was scheduled since, earlier than this one.
        if at != self._next_round_at:
            return
        now, self._next_round_at = self._now(), inf
        self._ready_until = {each: until for each, until in self._ready_until.items() if until > now}
        if not self._ready_until:
            return
        self._schedule(now, ROUND_SECONDS)
        if waiting := self._waiting():
            self._move(waiting, now)

    def _move(self, waiting: Mapping[str, Mapping[str, Sequence[MovableRequest]]], now: float) -> None:
        statuses = [
            each for each in self._replicas.statuses(now) if each.state is HealthState.HEALTHY and each.weight > 0
        ]
        taken: Counter[str] = Counter()
        for model in sorted(waiting):
            queues = [queue_of(each, taken[each.replica_id]) for each in statuses if model in each.models]
            for request, replica_id in choose_moves(queues, self._ready_until, waiting[model]):
                taken[replica_id] += 1
                request.move(replica_id)
        if taken:
            log.info("requests move to replicas that became ready: %s", dict(taken))

    def _waiting(self) -> dict[str, dict[str, list[MovableRequest]]]:
        """Return the waiting requests by model and replica, oldest first."""
        places: list[tuple[float, str, str, MovableRequest]] = []
        for request in self._requests:
            if (place := request.waiting_place) is not None:
                replica_id, model, since = place
                places.append((since, replica_id, model, request))
        waiting: dict[str, dict[str, list[MovableRequest]]] = {}
        for _, replica_id, model, request in sorted(places, key=lambda each: each[:3]):
            waiting.setdefault(model, {}).setdefault(replica_id, []).append(request)
        return waiting


def queue_of(status: ReplicaStatus, num_taken: int = 0) -> ReplicaQueue:
    """Return what is open on a replica, with `num_taken` requests that are on their way to it.

    Its weight is that without the slow start: the requests wait longer than a cold replica would take for them.
    """
    load, num_open = status.load, status.open_requests + num_taken
    if load is None or (status.load_age_seconds or 0.0) > MAX_REPORT_AGE_SECONDS:
        return ReplicaQueue(replica_id=status.replica_id, weight=status.weight, open_requests=num_open)
    # The report has the requests of other routers, and this router's count the newest of its own.
    num_open = max(num_open, load.running_requests + load.waiting_requests + num_taken)
    return ReplicaQueue(
        replica_id=status.replica_id, weight=status.weight, open_requests=num_open,
        waiting_requests=load.waiting_requests,
        free_places=max(0, load.max_running_requests - num_open) if load.max_running_requests else None,
        expected_wait_seconds=load.expected_wait_seconds,
    )  # fmt: skip
