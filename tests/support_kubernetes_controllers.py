"""Controllers of Deployments and LeaderWorkerSets over a FakeKubernetes, as the real ones create and delete pods."""

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

from support_kubernetes_objects import COST
from support_services_kubernetes import FakeKubernetes

HASH = "pod-template-hash"
DESIRED = "deployment.kubernetes.io/desired-replicas"
LWS = "leaderworkerset.sigs.k8s.io"


def pod_template(version: str = "1", **spec: Any) -> dict[str, Any]:
    container = {
        "name": "replica", "image": f"chairlift:{version}", "ports": [{"name": "http", "containerPort": 8000}],
    }  # fmt: skip
    return {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [container], **spec}}


def deployment(name: str = "llm", replicas: int = 1, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": "llm"}}, "template": pod_template(), **spec,
    }}  # fmt: skip


def leader_worker_set(name: str = "llm", replicas: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {
        "replicas": replicas, "leaderWorkerTemplate": {"size": 2, "workerTemplate": pod_template()},
    }}  # fmt: skip


def digest(template: Any) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:9]


def owner(body: dict[str, Any]) -> list[dict[str, Any]]:
    metadata = body["metadata"]
    return [{"apiVersion": body["apiVersion"], "kind": body["kind"], "name": metadata["name"], "uid": metadata["uid"],
             "controller": True}]  # fmt: skip


def is_active(pod: dict[str, Any]) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and pod["status"]["phase"] not in {"Failed", "Succeeded"}


def is_ready(pod: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def deletion_rank(pod: dict[str, Any]) -> tuple[Any, ...]:
    """Return a key by which a ReplicaSet sorts pods, those that go first in front."""
    phases = {"Pending": 0, "Unknown": 1, "Running": 2}
    cost = int((pod["metadata"].get("annotations") or {}).get(COST, "0"))
    created = pod["metadata"]["creationTimestamp"]
    return bool(pod["spec"].get("nodeName")), phases[pod["status"]["phase"]], is_ready(pod), cost, _descending(created)


def _descending(text: str) -> tuple[int, ...]:
    return tuple(-ord(each) for each in text)


@dataclass
class Controllers:
    """What keeps the pods as the workloads say; `settle` lets it work until nothing changes."""

    fake: FakeKubernetes
    starts_pods: bool = True
    """Whether new pods get a node and become ready at once."""
    removes_pods: bool = True
    """Whether pods that terminate are gone at once."""
    is_running: bool = True
    created: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    num_addresses: int = 0

    async def settle(self) -> None:
        for _ in range(50):
            version = self.fake.version
            for each in self.fake.find("deployments"):
                await self._sync_deployment(each)
            for each in self.fake.find("leaderworkersets"):
                await self._sync_leader_worker_set(each)
            await self._advance_pods()
            if self.fake.version == version:
                return
        raise AssertionError("the controllers never come to rest")

    # -- pods ------------------------------------------------------------------------------------------------------

    async def set_pod(self, name: str, **status: Any) -> None:
        """Change the status of a pod; `node` is its node."""
        body = self.fake.objects["pods", "default", name]
        node = status.pop("node", body["spec"].get("nodeName"))
        spec = {**body["spec"], **({"nodeName": node} if node else {})}
        await self.fake.put_object("pods", {**body, "spec": spec, "status": {**body["status"], **status}})

    async def run_pod(self, name: str, *, is_ready: bool = True) -> None:
        self.num_addresses += 1
        ready = {"type": "Ready", "status": str(is_ready)}
        await self.set_pod(
            name, node="node-1", phase="Running", podIP=f"10.0.0.{self.num_addresses}", conditions=[ready]
        )  # fmt: skip

    async def _advance_pods(self) -> None:
        for pod in self.fake.find("pods"):
            metadata = pod["metadata"]
            if metadata.get("deletionTimestamp") and self.removes_pods:
                await self.fake.delete(metadata["name"], metadata["namespace"], "pods")
            elif self.starts_pods and is_active(pod) and pod["status"]["phase"] == "Pending":
                await self.run_pod(metadata["name"])

    def pods(self, **labels: str) -> list[dict[str, Any]]:
        """Return the active pods with these labels, by name."""
        found = [pod for pod in self.fake.find("pods") if is_active(pod)]
        return [pod for pod in found if labels.items() <= pod["metadata"].get("labels", {}).items()]

    def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods()]

    def pods_of(self, sets: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the active pods of ReplicaSets."""
        uids = {each["metadata"]["uid"] for each in sets}
        return [pod for pod in self.pods() if pod["metadata"]["ownerReferences"][0]["uid"] in uids]

    async def _create_pod(self, name: str, template: Any, labels: dict[str, str], owners: Any) -> None:
        self.created.append(name)
        labels = {**template["metadata"]["labels"], **labels}
        await self.fake.put_object("pods", {
            "metadata": {"name": name, "labels": labels, "ownerReferences": owners}, "spec": dict(template["spec"]),
            "status": {"phase": "Pending"},
        })  # fmt: skip

    async def _delete_pod(self, name: str) -> None:
        self.deleted.append(name)
        await self.fake.terminate(("pods", "default", name))

    # -- Deployments -----------------------------------------------------------------------------------------------

    def replica_sets(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        uid = body["metadata"]["uid"]
        return [each for each in self.fake.find("replicasets") if each["metadata"]["ownerReferences"][0]["uid"] == uid]

    async def _sync_deployment(self, body: dict[str, Any]) -> None:
        if not self.is_running:
            return
        spec, name = body["spec"], body["metadata"]["name"]
        version = digest(spec["template"])
        if not any(each["metadata"]["labels"][HASH] == version for each in self.replica_sets(body)):
            labels = {**spec["template"]["metadata"]["labels"], HASH: version}
            await self.fake.put_object("replicasets", {
                "metadata": {"name": f"{name}-{version}", "labels": labels, "ownerReferences": owner(body)},
                "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": spec["template"]},
            })  # fmt: skip
        sets = self.replica_sets(body)
        sizes = self._sizes(spec, sets, version)
        for each in sets:
            metadata = each["metadata"]
            metadata = {**metadata, "annotations": {DESIRED: str(spec["replicas"])}}
            size = sizes[metadata["labels"][HASH]]
            changed = {**each, "metadata": metadata, "spec": {**each["spec"], "replicas": size}}
            await self._sync_replica_set(await self.fake.put_object("replicasets", changed), body)
        pods = self.pods_of(sets)
        updated = [pod for pod in pods if pod["metadata"]["labels"][HASH] == version]
        await self.fake.put_object("deployments", {**self.fake.objects["deployments", "default", name], "status": {
            "observedGeneration": body["metadata"]["generation"], "replicas": len(pods),
            "updatedReplicas": len(updated), "readyReplicas": sum(map(is_ready, pods)),
        }})  # fmt: skip

    def _sizes(self, spec: dict[str, Any], sets: list[dict[str, Any]], version: str) -> dict[str, int]:
        """Return how many pods each version should have: in proportion after a change, otherwise the next step."""
        target = spec["replicas"]
        sizes = {each["metadata"]["labels"][HASH]: each["spec"]["replicas"] for each in sets}
        old = {name: size for name, size in sizes.items() if name != version and size}
        if not old:
            return {**sizes, version: target}
        surge, unavailable = math.ceil(target / 4), target // 4
        desired = {
            (each["metadata"].get("annotations") or {}).get(DESIRED) for each in sets if each["spec"]["replicas"]
        }
        if desired - {str(target), None}:  # scaled during a rollout
            total, allowed = sum(sizes.values()), target + surge if target else 0
            sizes = {name: size * allowed // total for name, size in sizes.items()}
            return {**sizes, version: min(target, sizes[version] + max(0, allowed - sum(sizes.values())))}
        sizes[version] = min(target, max(sizes[version], target + surge - sum(old.values())))
        num_ready = sum(is_ready(pod) for pod in self.pods_of(sets))
        spare = max(0, num_ready - (target - unavailable))
        for name, size in old.items():
            removed = min(size, spare)
            sizes[name], spare = size - removed, spare - removed
        return sizes

    async def _sync_replica_set(self, body: dict[str, Any], workload: dict[str, Any]) -> None:
        version, replicas = body["metadata"]["labels"][HASH], body["spec"]["replicas"]
        pods = sorted(self.pods_of([body]), key=deletion_rank)
        for pod in pods[: max(0, len(pods) - replicas)]:
            await self._delete_pod(pod["metadata"]["name"])
        for _ in range(replicas - len(pods)):
            name = f"{workload['metadata']['name']}-{version}-{len(self.created):05d}"
            await self._create_pod(name, body["spec"]["template"], {HASH: version}, owner(body))

    # -- LeaderWorkerSets ------------------------------------------------------------------------------------------

    async def _sync_leader_worker_set(self, body: dict[str, Any]) -> None:
        if not self.is_running:
            return
        name, spec = body["metadata"]["name"], body["spec"]
        template = spec["leaderWorkerTemplate"]["workerTemplate"]
        indexes = {
            int(pod["metadata"]["labels"][f"{LWS}/group-index"]) for pod in self.pods(**{f"{LWS}/name": name})
        }  # fmt: skip
        for index in sorted(indexes, reverse=True):
            if index >= spec["replicas"]:
                for pod in self.pods(**{f"{LWS}/name": name, f"{LWS}/group-index": str(index)}):
                    await self._delete_pod(pod["metadata"]["name"])
        existing = {pod["metadata"]["name"] for pod in self.fake.find("pods")}
        for index in set(range(spec["replicas"])) - indexes:
            for worker in range(spec["leaderWorkerTemplate"]["size"]):
                pod_name = f"{name}-{index}" + (f"-{worker}" if worker else "")
                if pod_name in existing:
                    continue  # the pod before it still terminates
                labels = {f"{LWS}/name": name, f"{LWS}/group-index": str(index), f"{LWS}/worker-index": str(worker),
                          f"{LWS}/template-revision-hash": digest(template)}  # fmt: skip
                set_name = f"{name}-{index}" if worker else name
                owners = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": set_name, "uid": f"set-{set_name}",
                           "controller": True}]  # fmt: skip
                await self._create_pod(pod_name, template, labels, owners)
        await self.fake.put_object("leaderworkersets", {
            **self.fake.objects["leaderworkersets", "default", name], "status": {"replicas": spec["replicas"]},
        })  # fmt: skip
