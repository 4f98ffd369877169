"""Pod: a pod of the workload as ClusterReplica, with what decides about its removal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.cluster.kubernetes.workload_url import WorkloadKind, WorkloadURL

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation by which a ReplicaSet chooses: of pods that are alike, those with the lower number go first."""

PREVIOUS_COST = "chairlift/previous-pod-deletion-cost"
"""Annotation of pods whose cost we have set: the cost before, "" if there was none."""

VERSION_LABELS = {
    WorkloadKind.DEPLOYMENT: "pod-template-hash",
    WorkloadKind.LEADER_WORKER_SET: "leaderworkerset.sigs.k8s.io/template-revision-hash",
}
LWS_GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"

FAILED_WAITS = frozenset({
    "CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError",
})  # fmt: skip
"""Reasons of a waiting container that a later attempt alone rarely ends."""

ENDED_PHASES = frozenset({"Succeeded", "Failed"})
MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of the workload.

    Attributes:
        replica: what the cluster lists.
        name: name of the pod.
        uid: its unique id.
        owners: unique ids of what owns it.
        owner_names: kind and name of what owns it.
        is_active: whether the workload counts it: it neither terminates nor has ended.
        is_assigned: whether it has a node.
        phase: Pending, Running, Unknown, Succeeded or Failed.
        is_ready: whether it is ready.
        created: seconds since 1970 of its creation.
        index: number of its group in a LeaderWorkerSet; 0 for a Deployment.
        deletion_cost: text of its deletion cost; None without one.
        previous_cost: the deletion cost before ours, "" for none; None unless we have set it.
    """

    replica: ClusterReplica
    name: str
    uid: str
    owners: tuple[str, ...]
    owner_names: tuple[tuple[str, str], ...]
    is_active: bool
    is_assigned: bool
    phase: str
    is_ready: bool
    created: float
    index: int
    deletion_cost: str | None
    previous_cost: str | None

    @property
    def has_ended(self) -> bool:
        """Whether its containers have ended and are not started again."""
        return self.phase in ENDED_PHASES


def parse_pod(body: Mapping[str, Any], url: WorkloadURL, now: float) -> Pod:
    """Return the pod of an object; `now` is in seconds since 1970.

    Raises an error of MALFORMED if it is malformed.
    """
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    name, uid = str(metadata["name"]), str(metadata["uid"])
    created = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
    phase = str(status.get("phase") or "Pending")
    state, reason = _state_of(metadata, spec, status, phase)
    address, no_address = _url_of(spec, status, url)
    is_lws = url.kind is WorkloadKind.LEADER_WORKER_SET
    owners = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
    replica = ClusterReplica(
        # a LeaderWorkerSet gives a new pod the name of the old one; the names of a Deployment's pods are not used again
        replica_id=f"{name}.{uid[:8]}" if is_lws else name, url=address, state=state,
        age_seconds=max(0.0, now - created), version=str(labels.get(VERSION_LABELS[url.kind]) or ""),
        node=str(spec.get("nodeName") or ""), reason=(reason or no_address)[:MAX_REASON_CHARS],
        replica_type=str((spec.get("nodeSelector") or {}).get(INSTANCE_TYPE) or ""),
    )  # fmt: skip
    return Pod(
        replica=replica, name=name, uid=uid, owners=tuple(str(each["uid"]) for each in owners),
        owner_names=tuple((str(each["kind"]), str(each["name"])) for each in owners),
        is_active=not metadata.get("deletionTimestamp") and phase not in ENDED_PHASES,
        is_assigned=bool(spec.get("nodeName")), phase=phase,
        is_ready=_condition(status, "Ready").get("status") == "True",
        created=created, index=int(labels.get(LWS_GROUP_INDEX) or 0) if is_lws else 0,
        deletion_cost=annotations.get(DELETION_COST), previous_cost=annotations.get(PREVIOUS_COST),
    )  # fmt: skip


def _state_of(
    metadata: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any], phase: str
) -> tuple[PlacementState, str]:
    """Return the state of a pod and its reason."""
    if metadata.get("deletionTimestamp"):
        return PlacementState.STOPPING, "it terminates"
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    if phase in ENDED_PHASES:
        reason = _join(status.get("reason"), status.get("message")) or _last_end(containers)
        return PlacementState.FAILED, reason or f"its phase is {phase}"
    for each in containers:
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in FAILED_WAITS:
            reason = _join(f"container {each.get('name')}: {waiting['reason']}", waiting.get("message"))
            return PlacementState.FAILED, "; ".join(filter(None, (reason, _last_end([each]))))
    if phase == "Pending":
        if not spec.get("nodeName"):
            scheduled = _condition(status, "PodScheduled")
            return PlacementState.PENDING, _join(
                scheduled.get("reason"), scheduled.get("message")
            ) or "it has no node yet"
        waits = (((each.get("state") or {}).get("waiting") or {}).get("reason") for each in containers)
        return PlacementState.PENDING, next(filter(None, waits), "ContainerCreating")
    ready = _condition(status, "Ready")
    if ready.get("status") == "True":
        return PlacementState.RUNNING, ""
    if phase == "Unknown":
        return PlacementState.RUNNING, "its node does not report"
    reason = _join(ready.get("reason"), ready.get("message")) or "it is not ready"
    return PlacementState.RUNNING, "; ".join(filter(None, (reason, _last_end(containers))))


def _last_end(containers: Sequence[Mapping[str, Any]]) -> str:
    """Return how a container has ended, now or before its restart; "" if none has."""
    for each in containers:
        for state in (each.get("state") or {}, each.get("lastState") or {}):
            if (ended := state.get("terminated")) and (ended.get("exitCode") or each.get("restartCount")):
                return (
                    f"container {each.get('name')} ended with {ended.get('reason') or 'Error'}, exit code "
                    f"{ended.get('exitCode')}, {each.get('restartCount') or 0} restarts"
                )
    return ""


def _condition(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the condition of a name, empty if there is none."""
    return next((each for each in status.get("conditions") or () if each.get("type") == name), {})


def _join(reason: Any, message: Any) -> str:
    return ": ".join(str(each) for each in (reason, message) if each)


def _url_of(spec: Mapping[str, Any], status: Mapping[str, Any], url: WorkloadURL) -> tuple[str, str]:
    """Return the URL of a pod, "" if it has none, and why it never gets one."""
    ports = [each for container in spec.get("containers") or () for each in container.get("ports") or ()]
    numbers = {str(each.get("name") or each["containerPort"]): int(each["containerPort"]) for each in ports}
    port = int(url.port) if url.port.isdecimal() else numbers.get(url.port)
    if port is None:
        return "", f"it has no container port {url.port!r}; its ports are: {', '.join(numbers) or 'none'}"
    address = status.get("podIP")
    if not address:
        return "", ""
    host = f"[{address}]" if ":" in address else address
    return f"{url.scheme}://{host}:{port}", ""
