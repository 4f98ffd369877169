"""Bundles: replicas are spread over nodes, 0 CPUs are a whole node, and a reason names what is missing."""

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.ray.placement import choose_bundle, missing_resources
from chairlift.cluster.ray.snapshot import RayGroup, RayNode
from support_shares import for_each


def node(name: str, cpus: float, gpus: float = 0.0, *, is_alive: bool = True, **more: float) -> RayNode:
    resources = {"CPU": cpus, "GPU": gpus, **more} if cpus or gpus else dict(more)
    return RayNode(node_id=name, address="h", is_alive=is_alive, resources=resources)


def groups_on(*names: str) -> list[RayGroup]:
    return [RayGroup(name=f"g{index}", state="CREATED", node_id=name) for index, name in enumerate(names)]


NODES = [node("head", 0), node("a", 4), node("b", 4), node("c", 8, 2), node("dead", 64, 8, is_alive=False)]


@for_each(
    ("cpus", "gpus", "used", "bundle", "chosen"),
    [
        (2, 0, [], {"CPU": 2}, "c"),  # the largest of those without a replica
        (2, 0, ["c"], {"CPU": 2}, "a"),
        (2, 0, ["c", "a"], {"CPU": 2}, "b"),
        (2, 0, ["c", "a", "b"], {"CPU": 2}, "c"),
        (2, 0, ["c", "a", "b", "c"], {"CPU": 2}, "a"),
        (2, 1, ["c"], {"CPU": 2, "GPU": 1}, "c"),  # the only one with GPUs
        (16, 0, [], {"CPU": 16}, ""),  # an autoscaler may add such a node
        (0, 0, [], {"CPU": 8}, "c"),  # all CPUs of its node
        (0, 0, ["c"], {"CPU": 4}, "a"),
        (0, 0, ["c", "a", "b"], {"CPU": 4}, ""),  # no node is free; it waits for one
        (0, 2, [], {"CPU": 8, "GPU": 2}, "c"),
        (0, 4, [], {"GPU": 4}, ""),
    ],
)
def test_a_bundle_goes_to_the_node_with_the_fewest_replicas(
    cpus: int, gpus: int, used: list[str], bundle: dict[str, float], chosen: str
) -> None:
    spec = ReplicaSpec(num_cpus=cpus, num_gpus=gpus)
    assert choose_bundle(spec, NODES, groups_on(*used)) == (bundle, chosen)


def test_a_ray_without_nodes_is_asked_for_one_cpu_at_least() -> None:
    assert choose_bundle(ReplicaSpec(), [], []) == ({"CPU": 1}, "")


def test_a_replica_type_can_need_further_resources() -> None:
    nodes = [node("a", 8), node("b", 4, accelerator=1.0)]
    assert choose_bundle(ReplicaSpec(num_cpus=1), nodes, [], {"accelerator": 0.5}) == (
        {"CPU": 1, "accelerator": 0.5}, "b",
    )  # fmt: skip


@for_each(
    ("bundle", "nodes", "used", "reason"),
    [
        ({"CPU": 16.0}, NODES, [], "needs 16 CPUs: the largest of 4 nodes has 8 CPUs"),
        ({"CPU": 1.0, "GPU": 4.0}, NODES, [], "needs 1 CPU and 4 GPUs: the largest of 4 nodes has 2 GPUs"),
        ({"CPU": 2.0}, NODES, ["a", "b", "c"], "of 4 nodes, 3 have as much, in use now (3 by replicas of this fleet)"),
        ({"GPU": 1.0}, NODES, [], "needs 1 GPU: of 4 nodes, 1 has as much, in use now (0 by replicas"),
        ({"CPU": 1.0}, [NODES[4]], [], "needs 1 CPU: Ray has no node"),
        ({"CPU": 8.0, "x": 1.0}, [node("a", 8), node("b", 1, x=1.0)], [], "none of 2 nodes has all of it"),
        ({"CPU": 2.0, "x": 1.0}, [node("a", 1)], [], "the largest of 1 node has 1 CPU and 0 x"),
    ],
)
def test_the_reason_names_what_is_missing(
    bundle: dict[str, float], nodes: list[RayNode], used: list[str], reason: str
) -> None:
    assert reason in missing_resources(bundle, nodes, groups_on(*used))
