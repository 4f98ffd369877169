"""WorkloadReader: reads a workload with its pods, and keeps which ReplicaSets are its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.cluster.kubernetes.api_client import APIClient
from chairlift.cluster.kubernetes.api_resources import MALFORMED, PODS, REPLICA_SETS
from chairlift.cluster.kubernetes.pods import VERSION_LABELS, Pod, parse_pod
from chairlift.cluster.kubernetes.workload import KubernetesWorkload, describe_rollout, parse_workload
from chairlift.cluster.kubernetes.workload_url import WorkloadKind, WorkloadURL
from chairlift.core.cluster_errors import ClusterFailed
from chairlift.web.registry.kubernetes_client import PAGE_SIZE

MAX_ENDED = 10
"""Pods that have ended, such as evicted ones, which are listed; the cluster may keep thousands of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """A workload and its pods at one moment.

    Attributes:
        workload: the workload.
        pods: its pods, also those that terminate.
        rollout: why it counts as being rolled out; "" if it does not.
    """

    workload: KubernetesWorkload
    pods: tuple[Pod, ...]
    rollout: str


class WorkloadReader:
    """Reads one workload."""

    def __init__(self, api: APIClient, url: WorkloadURL, wall_clock: Callable[[], float]) -> None:
        """Create the reader; `wall_clock` gives seconds since 1970, for ages."""
        self._api, self._url, self._wall_clock = api, url, wall_clock
        self._is_own: dict[str, bool] = {}
        """Unique ids of owners of pods, and whether they are ReplicaSets of the workload."""
        self._uid = self._resource_version = ""
        """Those of the workload when its ReplicaSets were listed."""

    async def read(self, *, from_cache: bool = False) -> WorkloadView:
        """Return the workload with its pods. Raises ClusterFailed and ClusterDenied.

        A read from the API server's cache costs etcd nothing, and may be a moment late.
        """
        body = await self._api.get(self._url.kind.resource, self._url.name, from_cache=from_cache)
        try:
            workload = parse_workload(self._url.kind, body)
        except MALFORMED as error:
            raise ClusterFailed(f"the {self._url} is malformed: {type(error).__name__}: {error}") from None
        # from its cache the API server returns all pods at once, so that many of them would make too long a response
        is_one_page = workload.replicas <= PAGE_SIZE
        found = await self._api.list(PODS, workload.selector, from_cache=from_cache and is_one_page)
        now = self._wall_clock()
        try:
            pods = [parse_pod(each, self._url, now) for each in found]
            if self._url.kind is WorkloadKind.LEADER_WORKER_SET:
                # the leaders belong to a StatefulSet with the name of the LeaderWorkerSet
                own = [pod for pod in pods if ("StatefulSet", workload.name) in pod.owner_names]
                versions = [pod.replica.version for pod in own if pod.is_active]
            else:
                if from_cache and self._knows_owners(workload, pods):
                    versions = [pod.replica.version for pod in pods if pod.is_active and self._owns(pod)]
                else:
                    versions = await self._find_replica_sets(workload, pods)
                own = [pod for pod in pods if self._owns(pod)]
        except MALFORMED as error:
            raise ClusterFailed(f"a pod of the {self._url} is malformed: {type(error).__name__}: {error}") from None
        own.sort(key=lambda pod: (pod.created, pod.name))
        ended = [pod.name for pod in own if pod.has_ended][:-MAX_ENDED]
        own = [pod for pod in own if pod.name not in ended]
        return WorkloadView(workload=workload, pods=tuple(own), rollout=describe_rollout(workload, versions))

    def _owns(self, pod: Pod) -> bool:
        """Return whether one of the workload's ReplicaSets owns a pod."""
        return any(self._is_own.get(uid) for uid in pod.owners)

    def _knows_owners(self, workload: KubernetesWorkload, pods: Sequence[Pod]) -> bool:
        """Return whether the ReplicaSets need not be listed again: they seldom change.

        A ReplicaSet of another owner, or of none, may be adopted, which changes the workload's status.
        """
        owners = [uid for pod in pods for uid in pod.owners]
        if workload.uid != self._uid or not self._is_own.keys() >= set(owners):
            return False
        return all(self._is_own[uid] for uid in owners) or workload.resource_version == self._resource_version

    async def _find_replica_sets(self, workload: KubernetesWorkload, pods: Sequence[Pod]) -> list[str]:
        """Learn which owners of pods belong to the workload; return the versions that should have pods.

        The list is never one of the cache, which may be older than that of the pods.
        """
        listed = await self._api.list(REPLICA_SETS, workload.selector)
        own = [each for each in listed if _is_owned_by(each, workload.uid)]
        own_uids = {str(each["metadata"]["uid"]) for each in own}
        owners = {uid for pod in pods for uid in pod.owners}
        self._is_own = {uid: uid in own_uids for uid in owners | own_uids}
        self._uid, self._resource_version = workload.uid, workload.resource_version
        return [
            str((each["metadata"].get("labels") or {}).get(VERSION_LABELS[self._url.kind]) or each["metadata"]["name"])
            for each in own
            if (each.get("spec") or {}).get("replicas")
        ]


def _is_owned_by(body: Any, uid: str) -> bool:
    owners = body["metadata"].get("ownerReferences") or ()
    return any(each.get("controller") and each.get("uid") == uid for each in owners)
