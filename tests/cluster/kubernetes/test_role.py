"""The Roles of deploy/kubernetes/ permit exactly what the code calls, and the router sees what the cluster scales."""

import asyncio
from collections.abc import Iterable

import pytest

from chairlift.router.discovery.kubernetes import KubernetesSource
from support_discovery import urls, watching
from support_kubernetes_cluster import MANIFESTS, ROLES, SPEC, KubernetesScene, kubernetes_scene, role_rules
from support_kubernetes_controllers import is_ready
from support_services_kubernetes import endpoint

Call = tuple[str, str, str]


def granted(rules: Iterable[dict[str, list[str]]]) -> set[Call]:
    """Return the verb, group and resource of each call that rules permit."""
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


async def publish(scene: KubernetesScene) -> None:
    """Put the ready pods into the EndpointSlice of the service, as its controller does; of a group the leader."""
    labels = {} if scene.kind == "deployment" else {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    pods = [pod for pod in scene.controllers.pods(**labels) if is_ready(pod)]
    ready = [endpoint(pod["status"]["podIP"]) for pod in pods]
    await scene.fake.put("llm-a", ready, namespace="default")


async def scale_up_and_down(scene: KubernetesScene) -> None:
    """Do what `chairlift autoscaler` does with a workload: it lists, scales up, chooses who goes, and scales down."""
    cluster = scene.make_cluster()
    await cluster.list()
    await cluster.scale(SPEC, 3)
    await scene.controllers.settle()
    remove = await cluster.removable([(await cluster.list())[0].replica_id])
    await cluster.scale(SPEC, 2, remove=remove)
    await scene.controllers.settle()
    await cluster.stop([(await cluster.list())[-1].replica_id])
    await cluster.start(SPEC)
    await cluster.close()


async def follow_endpoints(scene: KubernetesScene) -> None:
    """Do what the router does: follow the endpoints through a watch that is cut and one that has expired."""
    cluster = scene.make_cluster()
    await publish(scene)
    replicas = [each.url for each in await cluster.list()]
    await cluster.close()
    scene.fake.calls.clear()
    scene.fake.rules = role_rules(MANIFESTS / "router.yaml")
    async with watching(KubernetesSource(f"kubernetes://default/llm?server={scene.fake.url}")) as reader:
        assert urls(await reader.next()) == replicas
        scene.controllers.pods()[0]["status"]["podIP"] = "10.0.0.9"
        following = asyncio.create_task(reader.next())
        await scene.fake.forget_events()
        scene.fake.num_gone_watches = 1
        await publish(scene)
        assert "http://10.0.0.9:8000" in urls(await following)


@pytest.mark.parametrize("kind", ROLES)
def test_the_role_of_the_autoscaler_is_exactly_what_it_calls(kind: str) -> None:
    async def main() -> None:
        async with kubernetes_scene(2, kind=kind) as scene:
            await scale_up_and_down(scene)
            assert set(scene.fake.calls) == granted(role_rules(ROLES[kind]))

    asyncio.run(main())


@pytest.mark.parametrize("kind", ROLES)
def test_the_role_of_the_router_is_exactly_what_it_calls(kind: str) -> None:
    async def main() -> None:
        async with kubernetes_scene(2, kind=kind) as scene:
            await follow_endpoints(scene)
            assert set(scene.fake.calls) == granted(role_rules(MANIFESTS / "router.yaml"))

    asyncio.run(main())
