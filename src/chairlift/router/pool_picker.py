"""PoolPicker: picks the replicas of one request in its pool, and records its attempts."""

from chairlift.router.attempts.actions import PickReplica, RecordOutcome
from chairlift.router.attempts.events import NoReplica
from chairlift.router.live.request_timelines import RequestTimeline
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.replicas.reservation import Reservation
from chairlift.router.router import Router


class PoolPicker:
    """Picks the replicas of one request; see ReplicaPicker.

    Attributes:
        prompt_tokens: estimated tokens of the prompt.
        timeline: the request's timeline, which gets its attempts; None for a request that has none.
    """

    def __init__(
        self, router: Router, request: RoutingRequest, pool: str, timeline: RequestTimeline | None = None
    ) -> None:  # fmt: skip
        self._router, self._request, self._pool = router, request, pool
        self.prompt_tokens, self.timeline = request.prompt_tokens, timeline

    def pick(self, action: PickReplica) -> Reservation | None:
        """Reserve a replica; where there is none, one is asked for as for a held request."""
        reservation = self._router.pick(self._request, self._pool, action)
        if self.timeline is not None:
            replica_id = None if reservation is None else reservation.replica_id
            cached_tokens = 0 if replica_id is None else self._request.matched_tokens(replica_id)
            self.timeline.record_pick(action, replica_id, cached_tokens, self._router.clock.now())
        if reservation is None and not action.replica_id:
            self._router.hold.on_hold()
        elif reservation is not None and action.replica_id:
            self._router.telemetry.record_move()
        return reservation

    def no_replica(self, action: PickReplica) -> NoReplica:
        """Return why there is none."""
        return self._router.no_replica(self._pool, action)

    def record_attempt(self, outcome: RecordOutcome) -> None:
        """Count an attempt that has ended."""
        self._router.telemetry.record_attempt(outcome)
        if self.timeline is not None:
            self.timeline.record_attempt(outcome, self._router.clock.now())
