"""Policy, Filter, Scorer, Picker: choose the replica of a request; no I/O and no clock, so one seed replays a run."""

from collections.abc import Sequence
from typing import Protocol

from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest


class Policy(Protocol):
    """Chooses one of several replicas. May keep state of its own, such as the turn of a round robin."""

    def pick(self, request: RoutingRequest, candidates: Sequence[Candidate], now: float) -> Candidate:
        """Return one of `candidates`, which are at least one, in order of their ids; `now` is monotonic seconds."""
        ...


class Filter(Protocol):
    """Removes the replicas that should not get a request."""

    def filter(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return some of `candidates` in their order, at least one."""
        ...


class Scorer(Protocol):
    """Rates replicas in one respect."""

    def score(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return a number between 0, the worst, and 1, the best, for each candidate in order."""
        ...


class Picker(Protocol):
    """Chooses by the scores, or by a rule of its own that ignores them. May keep state."""

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        """Return one of `candidates`, which are at least one; `scores` has a number for each."""
        ...


class AssignedReplica:
    """A policy in front of another one, which chooses for requests without an assigned replica."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def pick(self, request: RoutingRequest, candidates: Sequence[Candidate], now: float) -> Candidate:
        """Return the assigned replica if it is a candidate, else the choice of the other policy."""
        assigned = (each for each in candidates if each.replica_id == request.assigned_replica_id)
        return next(assigned, None) or self._policy.pick(request, candidates, now)
