"""ReplicaTracker: decides in which state each replica is, from what its cluster and its own load report say.

cluster: pending ─► running ─────────────────────────────► stopping ─► gone
report:             none yet    ready   no answer
state:   STARTING   STARTING    READY   READY (no numbers)  DRAINING
                                        └─ after unresponsive_seconds, or start_seconds without a first
                                           report: stuck, to be stopped and replaced
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from chairlift.autoscaler.signals import ReplicaSample
from chairlift.cluster.base import ClusterReplica, PlacementState
from chairlift.core.load_report import ReplicaState
from chairlift.router.health.replica_load import ReplicaLoad


@dataclass(slots=True)
class _Seen:
    """What was seen of a replica."""

    was_ready: bool = False
    answered_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedPool:
    """The replicas at one moment.

    Attributes:
        samples: replicas for the autoscaler, without those that have failed.
        urls: URL of each replica that has one, by id.
        serving: ids of those that have been ready and run, in the cluster's order.
        stuck: ids of those that do not answer any more or never became ready, which must be replaced.
        failed: why replicas have failed, by id.
    """

    samples: tuple[ReplicaSample, ...]
    urls: Mapping[str, str]
    serving: tuple[str, ...]
    stuck: tuple[str, ...]
    failed: Mapping[str, str]


class ReplicaTracker:
    """Remembers which replicas were ready, and since when one does not answer."""

    def __init__(self, *, unresponsive_seconds: float = 60.0, start_seconds: float = 1800.0) -> None:
        self._unresponsive_seconds, self._start_seconds = unresponsive_seconds, start_seconds
        self._seen: dict[str, _Seen] = {}

    def update(
        self, replicas: Sequence[ClusterReplica], loads: Mapping[str, ReplicaLoad], draining: Set[str], now: float
    ) -> TrackedPool:
        """Return the pool; `loads` are the reports by URL, `draining` the ids that get no new requests."""
        self._seen = {each.replica_id: self._seen.get(each.replica_id, _Seen()) for each in replicas}
        samples, serving, stuck = list[ReplicaSample](), list[str](), list[str]()
        for replica in replicas:
            if replica.state is PlacementState.FAILED:
                continue
            load = loads.get(replica.url) if replica.url else None
            seen = self._seen[replica.replica_id]
            is_running = replica.state is PlacementState.RUNNING
            if load is not None:
                seen.answered_at = now
                seen.was_ready = seen.was_ready or load.state is ReplicaState.READY
            if is_running and seen.was_ready:
                serving.append(replica.replica_id)
            if is_running and self._is_stuck(replica, seen, now):
                stuck.append(replica.replica_id)
            state = self._state(replica, seen, is_draining=replica.replica_id in draining, load=load)
            samples.append(_sample(replica, state, load))
        return TrackedPool(
            samples=tuple(samples), urls={each.replica_id: each.url for each in replicas if each.url},
            serving=tuple(serving), stuck=tuple(stuck),
            failed={each.replica_id: each.reason for each in replicas if each.state is PlacementState.FAILED},
        )  # fmt: skip

    def _is_stuck(self, replica: ClusterReplica, seen: _Seen, now: float) -> bool:
        if not seen.was_ready:
            return replica.age_seconds > self._start_seconds
        return seen.answered_at is not None and now - seen.answered_at > self._unresponsive_seconds

    @staticmethod
    def _state(replica: ClusterReplica, seen: _Seen, *, is_draining: bool, load: ReplicaLoad | None) -> ReplicaState:
        if replica.state is PlacementState.STOPPING or is_draining:
            return ReplicaState.DRAINING
        if load is not None and load.state is ReplicaState.DRAINING:
            return ReplicaState.DRAINING
        if not seen.was_ready:
            return ReplicaState.STARTING
        if load is None or load.state in (ReplicaState.READY, None):
            return ReplicaState.READY
        return ReplicaState.STARTING  # its engine is started again, so that its capacity comes back


def _sample(replica: ClusterReplica, state: ReplicaState, load: ReplicaLoad | None) -> ReplicaSample:
    common = ReplicaSample(
        replica_id=replica.replica_id, state=state, age_seconds=replica.age_seconds, version=replica.version,
        replica_type=replica.replica_type,
    )  # fmt: skip
    if load is None or state is ReplicaState.STARTING:
        return common
    known = {name: getattr(load, name) for name in NUMBERS if name not in load.missing}
    for name in ("prefill_tokens_per_second", "output_tokens_per_second", "max_running_requests"):
        if not known.get(name):  # 0 is "unknown" there
            known.pop(name, None)
    return replace(common, **known)


NUMBERS = (
    "waiting_requests", "waiting_tokens", "running_requests", "expected_wait_seconds", "kv_usage_ratio",
    "prefill_tokens_per_second", "output_tokens_per_second", "max_running_requests",
    "cpu_ratio", "memory_ratio", "gpu_ratio", "gpu_memory_ratio",
)  # fmt: skip
"""Fields that a load report and a sample have in common."""
