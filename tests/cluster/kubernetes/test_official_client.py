"""The fake API server answers the official client as Kubernetes does: list, scale, patch, watch, and its errors."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import kubernetes
import pytest
from kubernetes.client import ApiException

from support_kubernetes_cluster import KubernetesScene, kubernetes_scene
from support_kubernetes_objects import COST

Await = Callable[[Coroutine[Any, Any, Any]], Any]


def drive(with_client: Callable[[Any, KubernetesScene, Await], None], **fields: Any) -> None:
    """Run a function in a thread with a client; its third argument runs a coroutine in the server's loop."""

    async def main() -> None:
        async with kubernetes_scene(3, **fields) as scene:
            loop = asyncio.get_running_loop()

            def call() -> None:
                configuration = kubernetes.client.Configuration(host=scene.fake.url)
                with kubernetes.client.ApiClient(configuration) as client:
                    with_client(client, scene, lambda each: asyncio.run_coroutine_threadsafe(each, loop).result(5))

            await asyncio.to_thread(call)

    asyncio.run(main())


EVERYTHING = [{
    "apiGroups": ["", "apps", "autoscaling", "leaderworkerset.x-k8s.io"], "verbs": [
        "get", "list", "watch", "update", "patch", "delete",
    ], "resources": ["pods", "deployments", "deployments/scale", "replicasets", "horizontalpodautoscalers",
                     "leaderworkersets", "leaderworkersets/scale"],
}]  # fmt: skip


def status_of(call: Callable[[], Any]) -> int:
    with pytest.raises(ApiException) as error:
        call()
    assert error.value.body and '"kind": "Status"' in error.value.body
    return int(error.value.status)


@pytest.mark.full
def test_it_lists_scales_patches_and_watches() -> None:
    def check(client: Any, scene: KubernetesScene, wait: Await) -> None:
        core, apps = kubernetes.client.CoreV1Api(client), kubernetes.client.AppsV1Api(client)
        pods = core.list_namespaced_pod("default", label_selector="app in (llm),pod-template-hash,!odd", limit=2)
        assert len(pods.items) == 2 and pods.metadata._continue
        rest = core.list_namespaced_pod("default", label_selector="app=llm", limit=2, _continue=pods.metadata._continue)
        assert len(rest.items) == 1 and rest.metadata._continue is None
        assert pods.items[0].status.phase == "Running" and pods.items[0].spec.containers[0].ports[0].name == "http"
        (replica_set,) = apps.list_namespaced_replica_set("default").items
        (owner,) = pods.items[0].metadata.owner_references
        assert (owner.kind, owner.name, owner.uid) == (
            "ReplicaSet",
            replica_set.metadata.name,
            replica_set.metadata.uid,
        )
        assert replica_set.metadata.owner_references[0].name == "llm"
        assert (
            kubernetes.client.AutoscalingV2Api(client).list_namespaced_horizontal_pod_autoscaler("default").items == []
        )

        names = [each.metadata.name for each in pods.items + rest.items]
        core.patch_namespaced_pod(names[1], "default", {"metadata": {"annotations": {COST: "-5"}}})
        assert core.read_namespaced_pod(names[1], "default").metadata.annotations == {COST: "-5"}
        scale = apps.read_namespaced_deployment_scale("llm", "default")
        assert (scale.kind, scale.spec.replicas, scale.status.replicas) == ("Scale", 3, 3)
        scale.spec.replicas = 2
        assert apps.replace_namespaced_deployment_scale("llm", "default", scale).spec.replicas == 2
        wait(scene.controllers.settle())
        assert [each.metadata.name for each in core.list_namespaced_pod("default").items] == [names[0], names[2]]
        assert apps.patch_namespaced_deployment_scale("llm", "default", {"spec": {"replicas": 3}}).spec.replicas == 3
        deployment = apps.read_namespaced_deployment("llm", "default")
        assert (deployment.spec.replicas, deployment.metadata.generation) == (3, 3)

        version = rest.metadata.resource_version
        watch, events = kubernetes.watch.Watch(), []
        for event in watch.stream(core.list_namespaced_pod, "default", resource_version=version, timeout_seconds=5):
            events.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                watch.stop()
        assert events == [("MODIFIED", names[1])] * 2 + [("DELETED", names[1])]

    drive(check, rules=EVERYTHING)


def test_it_gets_the_errors_of_kubernetes() -> None:
    def check(client: Any, scene: KubernetesScene, wait: Await) -> None:
        core, apps = kubernetes.client.CoreV1Api(client), kubernetes.client.AppsV1Api(client)
        name = scene.controllers.names()[0]
        stale = apps.read_namespaced_deployment_scale("llm", "default")
        apps.patch_namespaced_deployment_scale("llm", "default", {"spec": {"replicas": 4}})
        assert status_of(lambda: apps.replace_namespaced_deployment_scale("llm", "default", stale)) == 409
        assert status_of(lambda: core.patch_namespaced_pod(name, "default", {"metadata": {"uid": "other"}})) == 422
        cost = {"metadata": {"annotations": {COST: "99999999999"}}}
        assert status_of(lambda: core.patch_namespaced_pod(name, "default", cost)) == 422
        assert status_of(lambda: core.patch_namespaced_pod(name, "default", [{"op": "remove", "path": "/x"}])) == 415
        assert status_of(lambda: core.read_namespaced_pod("none", "default")) == 404
        assert status_of(lambda: core.list_namespaced_pod("default", _continue="2", resource_version="0")) == 400
        wait(scene.fake.forget_events())
        watch = kubernetes.watch.Watch()
        with pytest.raises(ApiException) as error:
            list(watch.stream(core.list_namespaced_pod, "default", resource_version="1", timeout_seconds=5))
        assert error.value.status == 410
        scene.fake.rules = []
        assert status_of(lambda: core.list_namespaced_pod("default")) == 403
        scene.fake.token = "secret"
        assert status_of(lambda: core.list_namespaced_pod("default")) == 401

    drive(check, rules=EVERYTHING)


def test_a_pod_terminates_before_it_is_gone_and_a_leader_worker_set_scales() -> None:
    def check(client: Any, scene: KubernetesScene, wait: Await) -> None:
        core, custom = kubernetes.client.CoreV1Api(client), kubernetes.client.CustomObjectsApi(client)
        group = "leaderworkerset.x-k8s.io", "v1", "default", "leaderworkersets"
        assert custom.list_namespaced_custom_object(*group)["items"][0]["spec"]["replicas"] == 3
        scale = custom.get_namespaced_custom_object_scale(*group, "llm")
        custom.replace_namespaced_custom_object_scale(*group, "llm", {**scale, "spec": {"replicas": 2}})
        scene.controllers.removes_pods = False
        wait(scene.controllers.settle())
        leaders = core.list_namespaced_pod(
            "default", label_selector="leaderworkerset.sigs.k8s.io/name=llm,leaderworkerset.sigs.k8s.io/worker-index=0"
        ).items
        assert [bool(each.metadata.deletion_timestamp) for each in leaders] == [False, False, True]
        core.delete_namespaced_pod("llm-0", "default")
        assert core.read_namespaced_pod("llm-0", "default").metadata.deletion_timestamp is not None

    drive(check, kind="leaderworkerset", rules=EVERYTHING)
