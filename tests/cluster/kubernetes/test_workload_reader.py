"""workload_reader.py: whose pods they are, also after the Deployment was made anew, and whatever the answers are."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.kubernetes import workload_reader
from chairlift.cluster.kubernetes.workload_reader import MAX_ENDED
from chairlift.core.cluster_errors import ClusterFailed
from support_kubernetes_cluster import SPEC, kubernetes_scene
from support_kubernetes_controllers import deployment, owner, pod_template


def test_a_deployment_that_was_made_anew_has_other_pods() -> None:
    async def main() -> None:
        async with kubernetes_scene(2) as scene:
            cluster = scene.make_cluster()
            before = await scene.ids(cluster)
            await scene.fake.delete("llm", "default", "deployments")
            await scene.fake.put_object(
                "deployments", deployment(replicas=1, template=pod_template("3"))
            )  # the old pods are orphans
            assert await cluster.list() == []
            await scene.controllers.settle()
            (after,) = await scene.ids(cluster)
            assert len(scene.controllers.names()) == 3 and after not in before
            await cluster.close()

    asyncio.run(main())


def test_a_replica_set_that_is_adopted_brings_its_pods() -> None:
    """A Deployment that is deleted with --cascade=orphan and made anew takes its ReplicaSet back."""

    async def main() -> None:
        async with kubernetes_scene(2) as scene:
            cluster = scene.make_cluster()
            before = await scene.ids(cluster)
            await scene.fake.delete("llm", "default", "deployments")
            body = await scene.fake.put_object("deployments", deployment(replicas=2))
            assert await cluster.list() == []
            (replica_set,) = scene.fake.find("replicasets")
            adopted = {**replica_set, "metadata": {**replica_set["metadata"], "ownerReferences": owner(body)}}
            await scene.fake.put_object("replicasets", adopted)
            assert await scene.ids(cluster) == before
            await cluster.close()

    asyncio.run(main())


def test_a_pod_that_nothing_owns_is_no_replica_and_is_looked_up_once() -> None:
    async def main() -> None:
        async with kubernetes_scene(1) as scene:
            cluster = scene.make_cluster()
            for number, owners in enumerate(([], [{"uid": "x", "kind": "Job", "name": "j", "controller": True}])):
                metadata = {"name": f"other-{number}", "labels": {"app": "llm"}, "ownerReferences": owners}
                await scene.fake.put_object("pods", {"metadata": metadata, "spec": {}, "status": {}})
            for _ in range(3):
                assert len(await cluster.list()) == 1
            assert scene.fake.calls.count(("list", "apps", "replicasets")) == 1
            await cluster.close()

    asyncio.run(main())


def test_of_the_pods_that_have_ended_only_the_last_are_listed() -> None:
    """A node that is short of memory evicts pod after pod, and the cluster keeps their names."""

    async def main() -> None:
        async with kubernetes_scene(2) as scene:
            cluster, evicted = scene.make_cluster(), []
            for _ in range(MAX_ENDED + 3):
                name = scene.controllers.names()[0]
                evicted.append(name)
                await scene.controllers.set_pod(name, phase="Failed", reason="Evicted")
                await scene.controllers.settle()
            states = {each.replica_id: each.state for each in await cluster.list()}
            failed = {name for name, state in states.items() if state is PlacementState.FAILED}
            assert len(states) == MAX_ENDED + 2 and len(failed) == MAX_ENDED < len(evicted)
            assert evicted[-1] in failed and evicted[0] not in failed
            await cluster.scale(SPEC, 1)
            await scene.controllers.settle()
            assert len(scene.controllers.names()) == 1
            await cluster.close()

    asyncio.run(main())


def test_many_pods_are_not_read_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_reader, "PAGE_SIZE", 2)

    async def main() -> None:
        async with kubernetes_scene(3) as scene:
            cluster = scene.make_cluster()
            await cluster.list()
            assert [each.get("resourceVersion") for each in scene.fake.requests] == ["0", None, None]
            await cluster.close()

    asyncio.run(main())


@pytest.mark.parametrize("text", ["{}", "[]", '{"spec": {"replicas": 3}}', '{"spec": {"replicas": []}}', "7"])
def test_a_malformed_scale_is_a_typed_error(text: str) -> None:
    async def main() -> None:
        async with kubernetes_scene(3) as scene:
            cluster = scene.make_cluster()
            scene.fake.fault = lambda request: web.Response(text=text) if request.path.endswith("/scale") else None
            with pytest.raises(ClusterFailed, match=r"the scale of the Deployment llm .* is malformed|replicas now"):
                await cluster._set_replicas(3, 2)
            await cluster.close()

    asyncio.run(main())


@pytest.mark.parametrize("change", [
    {"spec": None}, {"status": 7}, {"spec": {"containers": [{"ports": [{}]}]}}, {"status": {"conditions": [1]}},
    {"status": {"containerStatuses": [{"state": []}, 1]}},
])  # fmt: skip
def test_a_malformed_pod_is_a_typed_error(change: dict[str, Any]) -> None:
    async def main() -> None:
        async with kubernetes_scene(1) as scene:
            cluster = scene.make_cluster()
            (name,) = scene.controllers.names()
            scene.fake.objects["pods", "default", name].update(change)
            with pytest.raises(ClusterFailed, match="a pod of the Deployment llm in namespace default is malformed"):
                await cluster.list()
            await cluster.close()

    asyncio.run(main())
