"""AssignedReplica: keeps a session on the replica that the session table names, as long as it may get requests."""

from collections.abc import Sequence

from chairlift.router.policies.base import Candidate, Policy, RoutingRequest


class AssignedReplica:
    """A policy in front of another one, which chooses for requests without an assigned replica."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def pick(self, request: RoutingRequest, candidates: Sequence[Candidate], now: float) -> Candidate:
        """Return the assigned replica if it is a candidate, else the choice of the other policy."""
        assigned = (each for each in candidates if each.replica_id == request.assigned_replica_id)
        return next(assigned, None) or self._policy.pick(request, candidates, now)
