"""ClusterReplica, PlacementState: a replica as its cluster sees it."""

from dataclasses import dataclass
from enum import StrEnum


class PlacementState(StrEnum):
    """What a cluster knows about a replica; whether it serves is what its health check says."""

    PENDING = "pending"
    """It is asked for, and has no machine or process yet."""

    RUNNING = "running"
    """Its process runs; it may still load its model."""

    STOPPING = "stopping"
    """It was asked to stop."""

    FAILED = "failed"
    """It has ended by itself or cannot be started; `reason` says why."""


COUNTED_STATES = frozenset({PlacementState.PENDING, PlacementState.RUNNING})
"""States of the replicas that count towards the number which a cluster is to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReplica:
    """A replica as its cluster sees it.

    Attributes:
        replica_id: the cluster's name of it, unique for ever.
        url: where it listens; "" until that is known.
        state: see PlacementState.
        age_seconds: seconds since its start was asked for.
        version: version of the ReplicaSpec that it was started with; "" if the cluster does not know.
        node: machine that it runs on; "" if unknown.
        replica_type: type of that machine.
        reason: why it is in this state, for people; "" where there is nothing to say.
    """

    replica_id: str
    url: str = ""
    state: PlacementState
    age_seconds: float = 0.0
    version: str = ""
    node: str = ""
    replica_type: str = ""
    reason: str = ""
