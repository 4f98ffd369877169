"""choose_bundle: what a replica asks Ray for, and near which node; missing_resources: why a bundle has no place yet.

A replica is one bundle, which Ray places as a whole. Ray fills one node before it uses the next; so each bundle names
the node that it should go to, the one with the fewest replicas. That is a wish: where the node has no room, or is gone,
Ray takes another one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.ray.snapshot import RayGroup, RayNode

Bundle = dict[str, float]


def choose_bundle(
    spec: ReplicaSpec, nodes: Sequence[RayNode], groups: Sequence[RayGroup], extra: Mapping[str, float] | None = None
) -> tuple[Bundle, str]:
    """Return the resources of a replica and the id of the preferred node, "" if none is large enough.

    A spec with 0 CPUs gets all CPUs of its node; where no node is free of replicas, as many as the smallest node has.
    """
    alive = [node for node in nodes if node.is_alive]
    num_replicas = Counter(group.node_id for group in groups if group.node_id)
    bundle: Bundle = {"CPU": float(spec.num_cpus), "GPU": float(spec.num_gpus), **(extra or {})}
    bundle = {name: amount for name, amount in bundle.items() if amount > 0}
    fitting = [node for node in alive if node.resources.get("CPU", 0) >= 1 and _fits(bundle, node)]
    if not fitting:
        return bundle or {"CPU": 1.0}, ""
    if spec.num_cpus == 0:
        free = [node for node in fitting if num_replicas[node.node_id] == 0]
        if not free:
            return bundle | {"CPU": min(node.resources["CPU"] for node in fitting)}, ""
        fitting = free
    # the id last: two controllers choose the same node
    best = min(fitting, key=lambda node: (num_replicas[node.node_id], -node.resources["CPU"], node.node_id))
    return (bundle if spec.num_cpus else bundle | {"CPU": best.resources["CPU"]}), best.node_id


def missing_resources(bundle: Mapping[str, float], nodes: Sequence[RayNode], groups: Sequence[RayGroup]) -> str:
    """Return why a bundle is not placed, for people."""
    need = f"the replica needs {show_resources(bundle)}"
    alive = [node for node in nodes if node.is_alive]
    fitting = [node for node in alive if _fits(bundle, node)]
    if fitting:
        used = {group.node_id for group in groups} & {node.node_id for node in fitting}
        return (
            f"{need}: of {_nodes(len(alive))}, {len(fitting)} {'has' if len(fitting) == 1 else 'have'} as much, in use "
            f"now ({len(used)} by replicas of this fleet)"
        )
    if not alive:
        return f"{need}: Ray has no node"
    missing = {
        name: max(node.resources.get(name, 0.0) for node in alive)
        for name, amount in bundle.items()
        if all(node.resources.get(name, 0.0) < amount for node in alive)
    }
    if not missing:
        return f"{need}: none of {_nodes(len(alive))} has all of it"
    return f"{need}: the largest of {_nodes(len(alive))} has {show_resources(missing)}"


def show_resources(resources: Mapping[str, float]) -> str:
    """Return resources for people: 2 CPUs, 1 GPU."""
    names = {"CPU": ("CPU", "CPUs"), "GPU": ("GPU", "GPUs")}
    parts = []
    for name, amount in resources.items():
        one, many = names.get(name, (name, name))
        parts.append(f"{amount:g} {one if amount == 1 else many}")
    return " and ".join(parts)


def _fits(bundle: Mapping[str, float], node: RayNode) -> bool:
    return all(node.resources.get(name, 0.0) >= amount for name, amount in bundle.items())


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
