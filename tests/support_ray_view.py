"""replica: a replica on Ray as its view lists it, by number and state."""

from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.cluster.ray.placement_group_name import GroupName
from chairlift.cluster.ray.replica_view import RayReplica


def replica(number: int, state: PlacementState, *, age: float = 1.0, is_own_failure: bool = False) -> RayReplica:
    name = GroupName(fleet="a", number=number, token="t", version="v", replica_type="", started_seconds=number)
    return RayReplica(
        name, ClusterReplica(replica_id=name.replica_id, state=state, age_seconds=age, version="v"),
        is_own_failure=is_own_failure,
    )  # fmt: skip
