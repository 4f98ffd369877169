"""ReplicaEvents: logs what happens to replicas and passes it on to listeners."""

import logging
from collections.abc import Callable
from typing import ParamSpec

from chairlift.router.health.health_state import HealthState, Transition, TransitionListener

log = logging.getLogger(__name__)

LOGGED_AS_WARNING = {
    HealthState.EJECTED: frozenset(HealthState),
    HealthState.UNHEALTHY: frozenset(HealthState) - {HealthState.NOT_READY},
    HealthState.NOT_READY: frozenset({HealthState.HEALTHY}),
    HealthState.HEALTHY: frozenset(
        {HealthState.EJECTED, HealthState.PROBING, HealthState.UNHEALTHY, HealthState.NOT_READY}
    ),
}
"""New state -> the old states from which it is logged at the default level: the ends of failures are, too."""

P = ParamSpec("P")


class ReplicaEvents:
    """The listeners of a replica set. One that fails is logged, and routing goes on.

    Attributes:
        listeners: receive every change of a replica's state, after the log.
        restart_listeners: called with a replica's id and its new incarnation.
        membership_listeners: called after a replica was added or removed.
    """

    def __init__(self) -> None:
        self.listeners: list[TransitionListener] = []
        self.restart_listeners: list[Callable[[str, str], None]] = []
        self.membership_listeners: list[Callable[[], None]] = []

    def emit(self, transition: Transition | None) -> None:
        """Log a transition and pass it on; None means no transition."""
        if transition is None:
            return
        words = transition.replica_id, transition.new, transition.old, transition.reason
        if transition.old in LOGGED_AS_WARNING.get(transition.new, ()):
            log.warning("replica %s is %s, was %s: %s", *words)
        else:
            log.info("replica %s is %s, was %s: %s", *words)
        for listener in list(self.listeners):
            _call(listener.on_transition, transition)

    def restarted(self, replica_id: str, incarnation: str) -> None:
        """Log that a replica's process is a new one, and pass it on."""
        log.info("the process of replica %s is a new one: %s", replica_id, incarnation or "of unknown id")
        for listener in list(self.restart_listeners):
            _call(listener, replica_id, incarnation)

    def membership_changed(self) -> None:
        """Pass on that a replica was added or removed."""
        for listener in list(self.membership_listeners):
            _call(listener)


def _call(listener: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
    try:
        listener(*arguments, **options)
    except Exception:
        log.exception("a listener of replica events failed")
