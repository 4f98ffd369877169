"""RoutedBatchRoom: whether the replicas of a router have room for a request of a batch."""

from chairlift.core.load_report import ReplicaState
from chairlift.router.router import Router

MAX_UNSTARTED = 4
"""Requests of batches without a first token, at most, for each replica."""


class RoutedBatchRoom:
    """A Room: requests of batches begin while few requests wait for their first token."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def is_ready(self) -> bool:
        """See Room."""
        return self._router.lifecycle.state is ReplicaState.READY

    def has_room(self, num_unstarted: int, num_unadmitted: int) -> bool:
        """See Room: fewer other requests wait than there are replicas."""
        num_replicas = max(1, len(self._router.replicas.endpoints))
        num_others = self._router.admission.waiting_requests - (num_unstarted - num_unadmitted)
        return num_unstarted < MAX_UNSTARTED * num_replicas and num_others < num_replicas
