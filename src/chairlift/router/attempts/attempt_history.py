"""AttemptHistory: what the attempts so far mean for the next one: replicas to avoid, failures, when to try again."""

from collections.abc import Collection

from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.attempts.events import LOST_REPLICA, FailureReason, ReplicaPicked
from chairlift.router.attempts.final_errors import AttemptsFailure, FailureCause

DEFAULT_RETRY_SECONDS = 1.0
"""Seconds to retry after, where a full replica names no time."""

MIN_RETRY_SECONDS = 0.1
"""Shortest wait before full replicas are tried again."""

REPLACEMENT_CHECK_SECONDS = 0.2
"""Seconds between two looks for a replica, while there is none."""

LOST_SECONDS = 10.0
"""Time in which health checks find out that a replica is gone."""

MAX_MOVES = 2
"""How often a waiting request moves to another replica; each move is a new place in a queue."""

NO_ROOM = frozenset({FailureReason.REJECTED, FailureReason.UNAVAILABLE})
"""What a replica that is full or drains says."""


class AttemptHistory:
    """The attempts of one request.

    Attributes:
        num_attempts: how often the request was sent to a replica.
        num_failed: failures that count against max_attempts.
        num_moves: how often the request was to move to a replica that had become ready.
    """

    def __init__(self, limits: AttemptLimits) -> None:
        self._limits = limits
        self.num_attempts = self.num_failed = self.num_moves = 0
        self._tried: set[tuple[str, str]] = set()
        self._full: set[tuple[str, str]] = set()
        self._lost_at: dict[tuple[str, str], float] = {}
        self._has_ready_replica = False
        self._retry_after: float | None = None
        self._reason: FailureReason | None = None
        self._resume_until: float | None = None
        self._replaced_until: float | None = None

    @property
    def excluded(self) -> frozenset[tuple[str, str]]:
        """Id and incarnation of the replicas that the next attempt must avoid; a restarted one is another."""
        return frozenset(self._tried)

    @property
    def has_attempts_left(self) -> bool:
        """Whether fewer attempts have failed than may."""
        return self.num_failed < self._limits.max_attempts

    @property
    def may_move(self) -> bool:
        """Whether the request has not moved as often as it may."""
        return self.num_moves < MAX_MOVES

    def allow(self, replica: ReplicaPicked | None) -> None:
        """Allow a replica that was tried: it has not failed, and the request has moved to another one."""
        if replica is not None:
            self._tried.discard((replica.replica_id, replica.incarnation))

    def record_replica(self, replica: ReplicaPicked) -> None:
        """Note that the request is sent to a replica."""
        self._tried.add((replica.replica_id, replica.incarnation))
        self.num_attempts += 1

    def record_full(self, replica: ReplicaPicked, retry_after: float | None) -> None:
        """Note that a replica is full now."""
        self._full.add((replica.replica_id, replica.incarnation))
        self.record_retry_after(DEFAULT_RETRY_SECONDS if retry_after is None else retry_after)

    def record_no_replica(self, retry_after: float | None, ready: Collection[tuple[str, str]], now: float) -> None:
        """Note when a replica may have room, and which replicas are healthy though the request cannot use them.

        A lost replica that is still healthy after LOST_SECONDS was not lost: it may be tried again.
        """
        self.record_retry_after(retry_after)
        # A lost replica still counts as healthy until its health checks fail.
        self._has_ready_replica = any(each not in self._lost_at for each in ready)
        for replica in ready:
            if now - self._lost_at.get(replica, now) >= LOST_SECONDS:
                del self._lost_at[replica]
                self._tried.discard(replica)

    def record_retry_after(self, seconds: float | None) -> None:
        """Note when a replica may have room; the smallest counts."""
        if seconds is not None:
            self._retry_after = seconds if self._retry_after is None else min(self._retry_after, seconds)

    def record_failure(
        self, reason: FailureReason, *, has_progress: bool, now: float, replica: ReplicaPicked | None = None
    ) -> None:
        """Note a failed attempt at a replica.

        A refused connection costs no attempt, because replicas that were tried are excluded. A response that has begun
        loses none to replicas that are full or drain: the former cost it only time, which resume_wait_seconds bounds,
        and a rolling restart may hand it over as often as there are replicas.
        """
        self._reason = reason
        if reason in LOST_REPLICA and replica is not None:
            self._lost_at[replica.replica_id, replica.incarnation] = now
        is_free = has_progress or not self._limits.counts_rejections
        if reason is not FailureReason.CONNECT and not (reason in NO_ROOM and is_free):
            self.num_failed += 1

    def record_token(self) -> None:
        """Note that the response goes on, so the next wait for a replica has all its time."""
        self._resume_until = self._replaced_until = None

    def wait_seconds(self, now: float, *, has_sent: bool) -> float | None:
        """Return after how many seconds to try again; None if that takes too long.

        A response that has begun waits for full replicas. Any request waits for a replacement of lost replicas where no
        other one is healthy: a healthy one that has failed it, or has other weights, is not replaced.
        """
        if self._resume_until is None:
            self._resume_until = now + self._limits.resume_wait_seconds
        if self._retry_after is None:
            return self._replacement_wait_seconds(now)
        # A client that has no byte can be given the time when to come back instead.
        if not has_sent:
            return None
        seconds = max(MIN_RETRY_SECONDS, self._retry_after)
        return seconds if now + seconds <= self._resume_until else None

    def _replacement_wait_seconds(self, now: float) -> float | None:
        if self._has_ready_replica:
            return None
        if self._replaced_until is None:
            self._replaced_until = now + self._limits.replacement_wait_seconds
        return REPLACEMENT_CHECK_SECONDS if now + REPLACEMENT_CHECK_SECONDS <= self._replaced_until else None

    def forget_full(self) -> None:
        """Allow the full replicas again."""
        self._tried -= self._full
        self._full.clear()
        self._retry_after = None

    def failure(self, cause: FailureCause) -> AttemptsFailure:
        """Return the failure of the request."""
        retry_after = self._retry_after
        if retry_after is None and self._reason in (None, FailureReason.REJECTED):
            retry_after = DEFAULT_RETRY_SECONDS
        return AttemptsFailure(cause, self._reason, self.num_attempts, retry_after)
