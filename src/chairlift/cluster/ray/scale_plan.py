"""plan_scale: which replicas of a fleet to start, stop and clear away for a target; pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from chairlift.cluster.cluster_replica import COUNTED_STATES, PlacementState
from chairlift.cluster.ray.replica_view import RayReplica


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """What to do, in this order.

    Attributes:
        clear: replicas that failed or hang: their placement groups are removed, which frees their resources.
        stop: replicas to drain.
        num_start: replicas to start.
    """

    clear: tuple[RayReplica, ...]
    stop: tuple[RayReplica, ...]
    num_start: int


def plan_scale(replicas: Sequence[RayReplica], target: int, remove: Collection[str]) -> ScalePlan:
    """Plan the way to `target` pending and running replicas, without those of `remove`."""
    active = [each for each in replicas if each.replica.state in COUNTED_STATES]
    stop = [each for each in active if each.replica.replica_id in remove]
    remaining = [each for each in active if each.replica.replica_id not in remove]
    surplus = sorted(
        remaining, key=lambda each: (each.replica.state is not PlacementState.PENDING, -each.name.started_seconds)
    )[: max(0, len(remaining) - target)]
    return ScalePlan(
        clear=leftovers(replicas), stop=(*stop, *surplus), num_start=max(0, target - len(remaining)),
    )  # fmt: skip


def leftovers(replicas: Sequence[RayReplica]) -> tuple[RayReplica, ...]:
    """Return the replicas of which only resources are left."""
    return tuple(each for each in replicas if each.replica.state is PlacementState.FAILED or each.is_overdue)
