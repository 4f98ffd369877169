"""removal_order: the order in which replicas go when a pool shrinks."""

import math
from collections.abc import Sequence

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.pool_sample import ReplicaSample
from chairlift.core.load_report import ReplicaState


def removal_order(replicas: Sequence[ReplicaSample], config: AutoscalerConfig) -> list[ReplicaSample]:
    """Return the starting and ready replicas, the first to go first.

    Starting ones go before ready ones; then those of another version, the dearer ones, and of starting ones the
    youngest, of ready ones those with the fewest requests.
    """

    def key(replica: ReplicaSample) -> tuple[bool, bool, float, float, str]:
        is_ready = replica.state is ReplicaState.READY
        is_of_version = not config.version or replica.version == config.version
        load = _num_requests(replica) if is_ready else replica.age_seconds
        return is_ready, is_of_version, -config.budget.price(replica.replica_type), load, replica.replica_id

    return sorted((each for each in replicas if each.state in (ReplicaState.STARTING, ReplicaState.READY)), key=key)


def _num_requests(replica: ReplicaSample) -> float:
    """Return the requests of a replica; one that does not report them counts as the busiest."""
    if replica.running_requests is None and replica.waiting_requests is None:
        return math.inf
    return (replica.running_requests or 0.0) + (replica.waiting_requests or 0.0)
