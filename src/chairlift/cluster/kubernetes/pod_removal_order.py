"""order_of_removal, target_without: which pods a workload's own controller removes, and in which order; pure."""

import contextlib
from collections.abc import Collection, Sequence

from chairlift.cluster.kubernetes.pods import Pod
from chairlift.cluster.kubernetes.workload_url import WorkloadKind

LOW_COST = -1_000_000
"""Deletion cost of the pods that should go."""

PHASES = ("Pending", "Unknown", "Running")


def order_of_removal(kind: WorkloadKind, pods: Sequence[Pod], preferred: Collection[str]) -> list[Pod]:
    """Return the active pods in the order in which they go when `preferred` ones get LOW_COST.

    A LeaderWorkerSet removes its highest indexes. A ReplicaSet removes pods without a node first, then pending ones,
    then those that are not ready; the cost only decides between pods that are alike in that. Then the youngest goes.
    """
    active = [pod for pod in pods if pod.is_active]
    if kind is WorkloadKind.LEADER_WORKER_SET:
        return sorted(active, key=lambda pod: -pod.index)
    places = {replica_id: place for place, replica_id in enumerate(preferred)}

    def key(pod: Pod) -> tuple[bool, int, bool, int, int, float]:
        place = places.get(pod.replica.replica_id)
        cost = _cost_without_ours(pod) if place is None else LOW_COST
        phase = PHASES.index(pod.phase) if pod.phase in PHASES else 1
        return pod.is_assigned, phase, pod.is_ready, cost, place or 0, -pod.created

    return sorted(active, key=key)


def _cost_without_ours(pod: Pod) -> int:
    text = pod.deletion_cost if pod.previous_cost is None else pod.previous_cost
    with contextlib.suppress(ValueError):
        return int(text or 0)
    return 0


def target_without(kind: WorkloadKind, replicas: int, pods: Sequence[Pod], replica_ids: Collection[str]) -> int:
    """Return how many replicas remain of `replicas` when these are stopped.

    A replica that an earlier call has already taken off the number is not taken off again: in a LeaderWorkerSet an
    index beyond the number, in a Deployment a pod with our cost while there are more pods than the number says.
    """
    active = [pod for pod in pods if pod.is_active]
    leaving = [pod for pod in active if pod.replica.replica_id in replica_ids]
    if kind is WorkloadKind.LEADER_WORKER_SET:
        num_counted = sum(pod.index >= replicas for pod in leaving)
    else:
        surplus = max(0, len(active) - replicas)
        num_counted = min(surplus, sum(pod.previous_cost is not None for pod in leaving))
    return max(0, replicas - len(leaving) + num_counted)
