"""StuckReplacement: chooses which stuck replica is replaced, one after another."""

from chairlift.fleet.replica_tracker import TrackedPool

RETRY_SECONDS = 60.0
"""Seconds after which a replica that was stopped and runs as before is stopped again."""


class StuckReplacement:
    """Chooses which stuck replica may be stopped now: one, and the next one when that has helped.

    It has helped once another replica has become ready. Without that the next one may go after `start_seconds` if any
    replica answers, and at once if it was started after the last stop.
    """

    def __init__(self, start_seconds: float) -> None:
        self._start_seconds = start_seconds
        self._stopped_id, self._stopped_at = "", 0.0

    def candidates(self, pool: TrackedPool, now: float) -> tuple[str, ...]:
        """Return the replicas of which one may be stopped."""
        stopped_at = self._stopped_at
        if self._stopped_id in pool.stuck:  # it runs on though it was stopped
            return (self._stopped_id,) if now - stopped_at >= RETRY_SECONDS else ()
        has_helped = pool.became_ready_at is not None and pool.became_ready_at > stopped_at
        answers = pool.answered_at is not None and pool.answered_at > stopped_at
        is_over = answers and now - stopped_at > self._start_seconds
        if not self._stopped_id or has_helped or is_over:
            return tuple(pool.stuck)
        return tuple(name for name, each in pool.stuck.items() if each.seen_at > stopped_at)

    def note_stopped(self, replica_id: str, now: float) -> None:
        """Note that a stuck replica was stopped."""
        self._stopped_id, self._stopped_at = replica_id, now
