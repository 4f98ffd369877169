"""FakeRay: nodes, placement groups and actors in memory; Controller: a RayCluster over it, with clocks of the test."""

from typing import Any

import msgspec

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.ray.cluster import RayCluster
from chairlift.cluster.ray.config import RayConfig
from chairlift.cluster.ray.placement_group_name import GroupName
from chairlift.cluster.ray.snapshot import ActorReport, ActorState, RayGroup, RayNode, RaySnapshot
from chairlift.core.cluster_errors import ClusterFailed
from support_server import run

SPEC = ReplicaSpec(model="m", arguments=("--dtype", "float32"), environ={"A": "1"}, num_cpus=1)
RUNNING, PENDING, FAILED = PlacementState.RUNNING, PlacementState.PENDING, PlacementState.FAILED


class FakeRay:
    """Ray with nodes of one CPU: groups get the node that they wish for, and their actors run at once."""

    def __init__(self, num_nodes: int = 3) -> None:
        self.nodes = [
            RayNode(node_id=f"node{n}", address="h", is_alive=True, resources={"CPU": 1.0}) for n in range(num_nodes)
        ]
        self.groups: dict[str, RayGroup] = {}
        self.actors: dict[str, ActorReport] = {}
        self.launches: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.fail_at: int | None = None
        self.is_closed = False

    async def call(self, name: str, **arguments: Any) -> Any:
        """Make a call; the one with the number `fail_at` is made half, and fails."""
        self.calls.append(name)
        does_fail = self.fail_at is not None and len(self.calls) > self.fail_at
        if does_fail and name != "create":
            raise ClusterFailed("Ray is gone")
        result = getattr(self, "_" + name)(**arguments, **({"is_half": does_fail} if name == "create" else {}))
        if does_fail:
            raise ClusterFailed("Ray is gone")
        return result

    async def close(self) -> None:
        self.is_closed = True

    def _snapshot(self) -> Any:
        snapshot = RaySnapshot(nodes=self.nodes, groups=list(self.groups.values()), actors=self.actors)
        return msgspec.to_builtins(snapshot)

    def _create(
        self, *, group: str, bundle: dict[str, float], node_id: str, runtime_env: dict[str, Any],
        launch: dict[str, Any], is_half: bool,
    ) -> bool:  # fmt: skip
        used = {each.node_id for each in self.groups.values()}
        free = [node.node_id for node in self.nodes if node.is_alive and node.node_id not in used]
        place = node_id if node_id in free else next(iter(free), "")
        name = GroupName.parse(group, "f")
        assert name is not None
        if any(each.startswith(f"{name.actor_name}:") for each in self.actors):
            return False
        self.groups[group] = RayGroup(name=group, state="CREATED" if place else "PENDING", node_id=place, bundle=bundle)
        self.actors[group] = ActorReport(
            state=ActorState.RUNNING if place else ActorState.ABSENT, url=f"http://{group}"
        )
        if is_half:
            del self.actors[group]
        self.launches.append({"runtime_env": runtime_env, **launch})
        return True

    def _stop(self, *, group: str, timeout_seconds: float) -> None:
        assert timeout_seconds == 40.0
        self.report(group, state=ActorState.STOPPING)

    def _remove(self, *, group: str) -> None:
        self.groups.pop(group, None)
        self.actors.pop(group, None)

    def report(self, group: str, **fields: Any) -> None:
        """Change what an actor says."""
        self.actors[group] = msgspec.structs.replace(self.actors[group], **fields)


class Controller:
    """A RayCluster with clocks that a test sets."""

    def __init__(self, ray: FakeRay, now: float = 1000.0, **options: Any) -> None:
        self.ray, self.now = ray, now
        config = RayConfig(fleet="f", **options)
        self.serving: set[str] = set()
        self.cluster = RayCluster(
            config, driver=ray, clock=lambda: self.now, wall_clock=lambda: self.now, probe=self._probe
        )

    def scale(self, target: int, *remove: str, spec: ReplicaSpec = SPEC) -> None:
        run(self.cluster.scale(spec, target, remove=remove))

    async def _probe(self, url: str) -> bool:
        return url in self.serving

    def states(self) -> list[PlacementState]:
        return [each.state for each in run(self.cluster.list())]

    def ids(self) -> list[str]:
        return [each.replica_id for each in run(self.cluster.list())]
