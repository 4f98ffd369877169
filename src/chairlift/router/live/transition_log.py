"""TransitionLog: the last changes of replicas' health, with their reasons."""

import time
from collections.abc import Callable

from chairlift.router.health.health_state import Transition
from chairlift.web.service.event_ring_buffer import EventRingBuffer

MAX_TRANSITIONS = 100


class TransitionLog:
    """A listener of the replica set.

    Attributes:
        log: the changes as JSON objects.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self.log = EventRingBuffer(MAX_TRANSITIONS)
        self._wall_clock = wall_clock

    def on_transition(self, transition: Transition) -> None:
        """Note a change."""
        self.log.add({
            "at_seconds": round(self._wall_clock(), 3), "replica_id": transition.replica_id, "old": transition.old,
            "new": transition.new, "cause": transition.cause, "reason": transition.reason,
            "ejection_seconds": round(transition.ejection_seconds, 3),
        })  # fmt: skip
