"""ReplicaStatus: a replica as /admin/replicas lists it."""

from dataclasses import dataclass

from chairlift.router.endpoint import ReplicaKind
from chairlift.router.health.health_state import HealthState, TransitionCause
from chairlift.router.health.replica_load import ReplicaLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """A replica as /admin/replicas lists it.

    Attributes:
        replica_id: the replica's URL.
        state: its health.
        cause: cause of the last change of its state.
        reason: the same as a sentence.
        seconds_in_state: time since then.
        weight: weight by its source or by an administrator.
        weight_override: an administrator's weight, None for none.
        effective_weight: weight with the slow start.
        open_requests: requests that this router has open there.
        load: its last load report, None if it sends none.
        load_age_seconds: age of that report.
        kind: which server it is; AUTO as long as that is unknown.
        resumable: whether its streams can go on on another replica.
        server_version: version of its server, "" if unknown.
        version: label for canaries.
        zone: label of where it runs.
        models: models that it serves.
        incarnation: id of its process, "" if unknown.
        num_attempts: requests that this router has sent there.
        num_ejections: how often it was ejected.
        num_restarts: how often its process was a new one.
    """

    replica_id: str
    state: HealthState
    cause: TransitionCause
    reason: str
    seconds_in_state: float
    weight: float
    weight_override: float | None
    effective_weight: float
    open_requests: int
    load: ReplicaLoad | None
    load_age_seconds: float | None
    kind: ReplicaKind
    resumable: bool
    server_version: str
    version: str
    zone: str
    models: tuple[str, ...]
    incarnation: str
    num_attempts: int
    num_ejections: int
    num_restarts: int
