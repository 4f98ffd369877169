"""HealthState and Transition: the health of a replica as the router sees it, and one change of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class HealthState(StrEnum):
    """The state of a replica in the router; only HEALTHY ones get requests while there are any."""

    PENDING = "pending"  # no probe has ended yet
    HEALTHY = "healthy"
    PROBING = "probing"  # half open: one trial request decides
    EJECTED = "ejected"
    UNHEALTHY = "unhealthy"  # active probes fail
    NOT_READY = "not_ready"  # reports itself that it starts, drains, or has no engine
    DRAINED = "drained"  # by an administrator
    REMOVED = "removed"  # no discovery source names it any more


class TransitionCause(StrEnum):
    """Why a replica changed its state."""

    ADDED = "added"
    PROBES = "probes"
    REPORT = "report"
    CONSECUTIVE_FAULTS = "consecutive_faults"
    ERROR_SHARE = "error_share"
    TIME_TO_FIRST_TOKEN = "time_to_first_token"
    INTER_TOKEN_LATENCY = "inter_token_latency"
    OTHER_ROUTER = "other_router"
    RECOVERY_TIMEOUT = "recovery_timeout"
    TRIAL = "trial"
    RESTART = "restart"
    EJECTION_LIMIT = "ejection_limit"
    ADMIN = "admin"
    REMOVED = "removed"


EJECTION_CAUSES = frozenset(
    {
        TransitionCause.CONSECUTIVE_FAULTS,
        TransitionCause.ERROR_SHARE,
        TransitionCause.TIME_TO_FIRST_TOKEN,
        TransitionCause.INTER_TOKEN_LATENCY,
        TransitionCause.OTHER_ROUTER,
        TransitionCause.TRIAL,
    }
)
"""Causes of a change to EJECTED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One change of a replica's state.

    Attributes:
        replica_id: the replica's URL.
        old: state before.
        new: state after.
        cause: what changed it, one of a few words.
        reason: the same as a sentence with its numbers.
        at_seconds: monotonic time of the change.
        incarnation: process instance of the replica; "" if unknown.
        ejection_seconds: how long the replica gets no requests; 0 unless `new` is EJECTED.
    """

    replica_id: str
    old: HealthState
    new: HealthState
    cause: TransitionCause
    reason: str
    at_seconds: float
    incarnation: str = ""
    ejection_seconds: float = 0.0


class TransitionListener(Protocol):
    """Receives every change of a replica's state. Called on the event loop, so it must return at once."""

    def on_transition(self, transition: Transition) -> None:
        """Take note of a change."""
        ...
