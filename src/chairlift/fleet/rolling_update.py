"""RollingUpdate: replaces the replicas of older versions one by one, and ends where the new ones cannot start.

    old old old ─► old old old NEW(starting) ─► old old (draining) NEW ─► ... ─► NEW NEW NEW
                               └─ MAX_FAILURES failures in a row, or a start that takes too long: the update is
                                  stopped, and new replicas are of the version before

A replica of the new version must be ready before an old one is drained. Where the budget has no room for one more, an
old one is drained first. Until a new one has been ready, replicas that the load needs are of the version before.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from chairlift.autoscaler.pool_sample import ReplicaSample
from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.core.load_report import ReplicaState

MAX_FAILURES = 5
"""Replicas of the new version that may fail in a row, without ever being ready, before an update is stopped."""

STARTING, READY, DRAINING = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStep:
    """What to do next.

    Attributes:
        num_new: replicas of the new version to start now.
        remove: replicas of older versions to drain and stop now.
        is_complete: whether no replica of an older version is left, and one of the new version serves if any is wanted.
    """

    num_new: int = 0
    remove: tuple[str, ...] = ()
    is_complete: bool = False


def plan_update(
    replicas: Sequence[ReplicaSample], version: str, target: int, room: int, *, kept: Collection[str] = ()
) -> UpdateStep:
    """Return the next step towards `target` replicas of `version`; replicas that drain do not count.

    `room` is how many replicas the budget allows in addition. Replicas of the versions `kept` that start are replaced
    like ready ones: they serve until the new ones can. Those of other versions go at once, because they have never
    served. A replica of an unknown version counts as one of `version`. Pure.
    """
    old = [each for each in replicas if each.version not in (version, "")]
    new = [each for each in replicas if each.version in (version, "")]
    old_ready = [each for each in old if each.state is READY]
    old_starting = [each for each in old if each.state is STARTING]
    if useless := tuple(each.replica_id for each in old_starting if each.version not in kept):
        return UpdateStep(remove=useless)
    num_ready = sum(each.state is READY for each in new)
    old_ready.sort(key=lambda each: (each.running_requests or 0) + (each.waiting_requests or 0))
    goes_next = tuple(each.replica_id for each in (*old_starting, *old_ready))[:1]
    if goes_next and num_ready + len(old_ready) + len(old_starting) > target:
        return UpdateStep(remove=goes_next)
    if not (old_ready or old_starting) and (num_ready or not target):
        return UpdateStep(is_complete=not old)
    if any(each.state is STARTING for each in new):
        return UpdateStep()
    if old_ready and any(each.state is DRAINING for each in replicas):
        return UpdateStep()
    if room > 0:
        return UpdateStep(num_new=1)
    return UpdateStep(remove=goes_next)


class RollingUpdate:
    """The version that replicas are to have, and what came of the last update to it.

    Attributes:
        spec: what new replicas are.
        is_active: whether an update goes on.
        failure: why the last update was stopped; "" if it was not.
        was_started: whether a replica has been asked for since the update began.
    """

    def __init__(self, spec: ReplicaSpec) -> None:
        self.spec = spec
        self.is_active, self.failure, self.was_started = False, "", False
        self._previous: ReplicaSpec | None = None
        self._is_previous_proven = False
        self._was_asked_for, self._is_proven, self._is_stopped = False, False, False
        self._num_failures, self._reason = 0, ""
        self._failed, self._ready = set[str](), set[str]()

    def begin(self, spec: ReplicaSpec, replicas: Iterable[ClusterReplica]) -> None:
        """Begin an update; `replicas` are those that are known, whose failures do not count."""
        if self._is_proven or (self._previous is None and not self._num_failures):
            self._previous, self._is_previous_proven = self.spec, self._is_proven
        self.spec, self.is_active, self.failure, self.was_started = spec, True, "", False
        self._was_asked_for, self._is_proven, self._is_stopped = True, False, False
        self._num_failures, self._reason = 0, ""
        self._failed = {each.replica_id for each in replicas if each.state is PlacementState.FAILED}
        self._ready = set()

    @property
    def growth_spec(self) -> ReplicaSpec:
        """What the replicas are that the load needs."""
        return self._kept or self.spec

    def growth(self, samples: Iterable[ReplicaSample]) -> tuple[int, int]:
        """Return how many live replicas count for the load, and how many places are left to the first new replica.

        Until a new one has been ready, those of the version before do the work.
        """
        live = [each for each in samples if each.state in (STARTING, READY)]
        if self._kept is None:
            return len(live), 0
        num_new = sum(each.version == self.spec.version for each in live)
        return len(live) - num_new, int(not num_new)

    def observe(self, samples: Sequence[ReplicaSample], replicas: Sequence[ClusterReplica]) -> None:
        """Note which replicas of the new version are ready, and which have failed."""
        self._observe_previous(samples, replicas)
        version = self.spec.version
        ready = {each.replica_id for each in samples if each.state is READY and each.version == version}
        failed = {
            each.replica_id: each.reason for each in replicas
            if each.state is PlacementState.FAILED and each.version == version
        }  # fmt: skip
        for replica_id in failed.keys() - self._failed - self._ready:
            self._num_failures, self._reason = self._num_failures + 1, f"{replica_id}: {failed[replica_id]}"
        if ready - self._ready:
            self._is_proven, self._num_failures = True, 0
        self._failed |= failed.keys()
        self._ready |= ready

    def plan(self, samples: Sequence[ReplicaSample], target: int, room: int) -> UpdateStep:
        """Return the next step; a finished or stopped update has none."""
        if self._is_stopped:
            return UpdateStep()
        has_old = any(each.version not in (self.spec.version, "") for each in samples)
        if not (self.is_active or has_old):
            return UpdateStep()
        self.is_active = True
        kept = set() if self._previous is None else {self._previous.version}
        if not self._was_asked_for:  # a former process started the others, and they may have served for long
            kept = {each.version for each in samples}
        step = plan_update(samples, self.spec.version, target, room, kept=kept)
        self.is_active = not step.is_complete
        return step

    def failure_reason(self) -> str:
        """Return why the update must be stopped; "" while it may go on."""
        if not self.is_active or self._num_failures < MAX_FAILURES:
            return ""
        return f"{self._num_failures} replicas in a row failed without ever being ready, the last one {self._reason}"

    def stop(self, reason: str) -> str:
        """Stop the update; new replicas are of the version before, if that is known. Returns the version given up."""
        version = self.spec.version
        self.is_active, self._is_stopped = False, True
        self.failure = f"the update to version {version} was stopped: {reason}"
        if self._previous is None:
            self._num_failures = max(1, self._num_failures)
        else:
            self.spec, self._is_proven, self._previous = self._previous, self._is_previous_proven, None
            self._num_failures = 0
        return version

    def _observe_previous(self, samples: Sequence[ReplicaSample], replicas: Sequence[ClusterReplica]) -> None:
        """Forget the version before if it fails, too, without ever having been ready."""
        if self._previous is None or self._is_previous_proven:
            return
        version = self._previous.version
        self._is_previous_proven = any(each.state is READY and each.version == version for each in samples)
        failed = {
            each.replica_id for each in replicas
            if each.state is PlacementState.FAILED and each.version == version and each.replica_id not in self._failed
        }  # fmt: skip
        if failed and not self._is_previous_proven:
            self._previous = None

    def note_stuck(self, version: str) -> bool:
        """Note that a replica was stopped that never became ready; return whether the update must be stopped."""
        if self._previous is not None and version == self._previous.version and not self._is_previous_proven:
            self._previous = None
        return self.is_active and version == self.spec.version

    @property
    def _kept(self) -> ReplicaSpec | None:
        """The version before, until the new one has been ready."""
        return self._previous if self.is_active and not self._is_proven else None
