"""EjectionSharer: tells the other routers of the ejections that this router decides."""

from typing import Protocol

from chairlift.router.health.health_state import HealthState, Transition, TransitionCause


class EjectionBroadcast(Protocol):
    """Reaches the other routers. The calls return at once."""

    def eject(self, replica_id: str, seconds: float, reason: str) -> None:
        """Tell the other routers that this one ejected a replica for some seconds."""
        ...

    def restore(self, replica_id: str) -> None:
        """Tell the other routers that this one uses a replica again."""
        ...


class EjectionSharer:
    """Listens to transitions. What another router decided is not sent back."""

    def __init__(self, broadcast: EjectionBroadcast) -> None:
        self._broadcast = broadcast
        self._shared: set[str] = set()

    def on_transition(self, transition: Transition) -> None:
        """Share an ejection, and its end if the replica is healthy again or a new process."""
        replica_id = transition.replica_id
        if transition.new is HealthState.EJECTED and transition.cause is not TransitionCause.OTHER_ROUTER:
            self._shared.add(replica_id)
            self._broadcast.eject(replica_id, transition.ejection_seconds, transition.reason)
        elif transition.new is HealthState.HEALTHY and replica_id in self._shared:
            self._shared.discard(replica_id)
            self._broadcast.restore(replica_id)
        elif transition.new is HealthState.REMOVED:
            self._shared.discard(replica_id)
