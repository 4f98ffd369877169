"""plan_update: one step of a rolling update, which replaces the replicas of older versions one by one.

    old old old ─► old old old NEW(starting) ─► old old (draining) NEW ─► ... ─► NEW NEW NEW

A replica of the new version must be ready before an old one is drained. Where the budget has no room for one more, an
old one is drained first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.autoscaler.signals import ReplicaSample
from chairlift.core.load_report import ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStep:
    """What to do next.

    Attributes:
        num_new: replicas of the new version to start now.
        remove: replicas of older versions to drain and stop now.
        is_complete: whether no replica of an older version is left.
    """

    num_new: int = 0
    remove: tuple[str, ...] = ()
    is_complete: bool = False


def plan_update(replicas: Sequence[ReplicaSample], version: str, target: int, max_replicas: int) -> UpdateStep:
    """Return the next step towards `target` replicas of `version`; replicas that drain do not count.

    `max_replicas` bounds all replicas together, those that drain included. A replica of an unknown version counts as
    one of `version`. Pure.
    """
    old = [each for each in replicas if each.version not in (version, "")]
    old_starting = [each.replica_id for each in old if each.state is ReplicaState.STARTING]
    if old_starting:  # they have never served: new ones take their place
        return UpdateStep(remove=tuple(old_starting))
    old_ready = [each for each in old if each.state is ReplicaState.READY]
    if not old_ready:
        return UpdateStep(is_complete=not any(each.state is ReplicaState.DRAINING for each in old))
    new = [each for each in replicas if each.version in (version, "")]
    num_starting = sum(each.state is ReplicaState.STARTING for each in new)
    num_ready = sum(each.state is ReplicaState.READY for each in new)
    if num_starting:
        return UpdateStep()
    least = min(old_ready, key=lambda each: (each.running_requests or 0) + (each.waiting_requests or 0)).replica_id
    if num_ready + len(old_ready) > target:
        return UpdateStep(remove=(least,))
    if any(each.state is ReplicaState.DRAINING for each in replicas):
        return UpdateStep()
    if len(replicas) < max_replicas:
        return UpdateStep(num_new=1)
    return UpdateStep(remove=(least,))
