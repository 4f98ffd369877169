"""A KubernetesCluster under the Role of the manifests, its fake API server and the controllers of its workload."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.cluster.kubernetes.cluster import KubernetesCluster
from support_kubernetes_controllers import Controllers, deployment, digest, leader_worker_set
from support_kubernetes_objects import COST
from support_services_kubernetes import FakeKubernetes, fake_kubernetes
from support_source_tree import ROOT

MANIFESTS = ROOT / "deploy" / "kubernetes"
SPEC = ReplicaSpec()
ROLES = {
    "deployment": MANIFESTS / "autoscaler.yaml",
    "leaderworkerset": MANIFESTS / "alternatives" / "leaderworkerset-role.yaml",
}


def role_rules(path: Path) -> list[dict[str, Any]]:
    """Return the rules of the only Role of a manifest."""
    roles = [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each["kind"] == "Role"]
    assert len(roles) == 1
    return list(roles[0]["rules"])


@dataclass
class KubernetesScene:
    fake: FakeKubernetes
    controllers: Controllers
    kind: str = "deployment"
    sleeps: list[float] = field(default_factory=list)

    def make_cluster(self, options: str = "", **fields: Any) -> KubernetesCluster:
        async def sleep(seconds: float) -> None:
            self.sleeps.append(seconds)
            await asyncio.sleep(0)

        text = f"kubernetes://default/{self.kind}/llm?server={self.fake.url}{options}"
        fields = {"rng": random.Random(3), "wall_clock": lambda: self.fake.now, "sleep": sleep,
                  "timeout_seconds": 30.0, **fields}  # fmt: skip
        return KubernetesCluster(text, **fields)

    async def settled(self, cluster: KubernetesCluster) -> list[ClusterReplica]:
        await self.controllers.settle()
        return list(await cluster.list())

    async def ids(self, cluster: KubernetesCluster) -> list[str]:
        """Return the replicas that do not stop, the oldest first, when the controllers have done their work."""
        return [each.replica_id for each in await self.settled(cluster) if each.state is not PlacementState.STOPPING]

    async def update_template(self, version: str = "2") -> None:
        """Begin a rollout."""
        body = self.workload()
        container = {**body["spec"]["template"]["spec"]["containers"][0], "image": f"chairlift:{version}"}
        template = {**body["spec"]["template"], "spec": {"containers": [container]}}
        await self.fake.put_object("deployments", {**body, "spec": {**body["spec"], "template": template}})

    def workload(self) -> dict[str, Any]:
        return self.fake.objects[f"{self.kind}s", "default", "llm"]

    def newest_version(self) -> str:
        return digest(self.workload()["spec"]["template"])

    def replicas(self) -> int:
        return int(self.workload()["spec"]["replicas"])

    def costs(self) -> dict[str, str]:
        """Return the deletion costs of active pods, by name, with every other annotation that they have."""
        found = {pod["metadata"]["name"]: pod["metadata"].get("annotations") or {} for pod in self.controllers.pods()}
        return {name: each.get(COST, str(each)) for name, each in found.items() if each}


@asynccontextmanager
async def kubernetes_scene(
    replicas: int = 3, *, kind: str = "deployment", rules: Sequence[dict[str, Any]] | None = None
) -> AsyncIterator[KubernetesScene]:
    """Yield a workload with its pods."""
    async with fake_kubernetes() as fake:
        fake.rules = role_rules(ROLES[kind]) if rules is None else rules
        body = deployment(replicas=replicas) if kind == "deployment" else leader_worker_set(replicas=replicas)
        await fake.put_object(f"{kind}s", body)
        scene = KubernetesScene(fake, Controllers(fake), kind)
        await scene.controllers.settle()
        yield scene


def run_scenario(
    scenario: Callable[[KubernetesScene], Coroutine[Any, Any, None]], replicas: int = 3, **fields: Any
) -> None:
    """Run a coroutine function with a workload of its own."""

    async def main() -> None:
        async with kubernetes_scene(replicas, **fields) as scene:
            await scenario(scene)

    asyncio.run(main())
