"""ReplicaTracker: decides in which state each replica is, from what its cluster and its own load report say.

cluster: pending ─► running ─────────────────────────────► stopping ─► gone
report:             none yet    ready   no answer
state:   STARTING   STARTING    READY   READY (no numbers)  DRAINING
                                        └─ after unresponsive_seconds, or start_seconds without a first
                                           report: stuck, to be stopped and replaced
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import IntEnum

from chairlift.autoscaler.pool_sample import ReplicaSample
from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.core.load_report import ReplicaState
from chairlift.router.health.replica_load import ReplicaLoad

LONGEST_GAP_SECONDS = 30.0
"""Seconds between two updates above which the rest is no time in which a replica did not answer."""


class _Phase(IntEnum):
    WAITING = 0
    """It waits for a machine: another one in its place would wait, too."""

    PLACED = 1
    """It has a machine, and does not run there yet."""

    RUNNING = 2


@dataclass(slots=True)
class _Seen:
    """What was seen of a replica."""

    seen_at: float
    is_adopted: bool
    phase: _Phase = _Phase.WAITING
    phase_at: float = 0.0
    was_ready: bool = False
    answered_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckReplica:
    """A replica that must be replaced.

    Attributes:
        reason: why, for people.
        seen_at: when it was seen first.
        was_ready: whether it has ever been ready.
    """

    reason: str
    seen_at: float
    was_ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedPool:
    """The replicas at one moment.

    Attributes:
        samples: replicas for the autoscaler, without those that have failed.
        urls: URL of each replica that has one, by id.
        serving: ids of those that have been ready and run, in the cluster's order.
        stuck: those that do not answer any more or never became ready, by id in the cluster's order.
        failed: why replicas have failed, by id.
        answered_at: when a replica has answered last; None if none has.
        became_ready_at: when a replica was ready for the first time, the newest such time; None without one.
    """

    samples: tuple[ReplicaSample, ...] = ()
    urls: Mapping[str, str] = field(default_factory=dict)
    serving: tuple[str, ...] = ()
    stuck: Mapping[str, StuckReplica] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    answered_at: float | None = None
    became_ready_at: float | None = None


class ReplicaTracker:
    """Remembers which replicas were ready, and since when one does not answer.

    Times count from what this object has seen: a replica may be older than the process that looks at it.
    """

    def __init__(self, *, unresponsive_seconds: float = 60.0, start_seconds: float = 1800.0) -> None:
        self.start_seconds = start_seconds
        self._unresponsive_seconds = unresponsive_seconds
        self._seen: dict[str, _Seen] | None = None
        self._updated_at: float | None = None
        self._answered_at: float | None = None
        self._became_ready_at: float | None = None

    def update(
        self, replicas: Sequence[ClusterReplica], loads: Mapping[str, ReplicaLoad], draining: Set[str], now: float
    ) -> TrackedPool:
        """Return the pool; `loads` are the reports by URL, `draining` the ids that get no new requests."""
        before = self._seen or {}
        is_first = self._seen is None
        self._skip_pause(before.values(), now)
        self._seen = {
            each.replica_id: before.get(each.replica_id) or _Seen(seen_at=now, is_adopted=is_first, phase_at=now)
            for each in replicas
        }
        samples, serving, stuck = list[ReplicaSample](), list[str](), dict[str, StuckReplica]()
        for replica in replicas:
            if replica.state is PlacementState.FAILED:
                continue
            load = loads.get(replica.url) if replica.url else None
            seen = self._seen[replica.replica_id]
            self._note(replica, seen, load, now)
            is_draining = replica.replica_id in draining
            if replica.state is PlacementState.RUNNING and seen.was_ready:
                serving.append(replica.replica_id)
            if not is_draining and (reason := self._stuck_reason(replica, seen, now, can_read=bool(loads))):
                stuck[replica.replica_id] = StuckReplica(reason=reason, seen_at=seen.seen_at, was_ready=seen.was_ready)
            state = self._state(replica, seen, is_draining=is_draining, load=load)
            samples.append(_sample(replica, state, load))
        return TrackedPool(
            samples=tuple(samples), urls={each.replica_id: each.url for each in replicas if each.url},
            serving=tuple(serving), stuck=stuck,
            failed={each.replica_id: each.reason for each in replicas if each.state is PlacementState.FAILED},
            answered_at=self._answered_at, became_ready_at=self._became_ready_at,
        )  # fmt: skip

    def _skip_pause(self, replicas: Iterable[_Seen], now: float) -> None:
        """Leave out the time in which this process did not look: it was stopped, or the machine slept or was busy."""
        pause = 0.0 if self._updated_at is None else now - self._updated_at - LONGEST_GAP_SECONDS
        self._updated_at = now
        for seen in replicas:
            if pause > 0 and seen.answered_at is not None:
                seen.answered_at += pause

    def _note(self, replica: ClusterReplica, seen: _Seen, load: ReplicaLoad | None, now: float) -> None:
        phase = _Phase.RUNNING if replica.state is PlacementState.RUNNING else _Phase.PLACED
        if replica.state is PlacementState.PENDING and not replica.node:
            phase = _Phase.WAITING
        if phase is not seen.phase:
            seen.phase, seen.phase_at = phase, now
        if load is not None:
            seen.answered_at = self._answered_at = now
            if load.state is ReplicaState.READY and not seen.was_ready:
                seen.was_ready, self._became_ready_at = True, now

    def _stuck_reason(self, replica: ClusterReplica, seen: _Seen, now: float, *, can_read: bool) -> str:
        """Return why a replica must be replaced; "" if there is no evidence for it."""
        is_running = replica.state is PlacementState.RUNNING
        if seen.was_ready and seen.answered_at is not None:
            silent_seconds = now - seen.answered_at
            is_silent = is_running and silent_seconds > self._unresponsive_seconds
            return f"it has not answered for {silent_seconds:.0f} s" if is_silent else ""
        is_late = now - seen.phase_at > self.start_seconds
        if not is_late or not (is_running or replica.state is PlacementState.PENDING) or seen.phase is _Phase.WAITING:
            return ""
        if is_running and seen.is_adopted and seen.answered_at is None and not can_read:
            return ""  # it may serve, and its reports cannot be read from here
        return f"it was not {'ready' if is_running else 'running'} within {self.start_seconds:g} s"

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
