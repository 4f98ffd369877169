"""KubernetesWorkload: a Deployment or LeaderWorkerSet as the API server describes it; describe_rollout."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.cluster.kubernetes.workload_url import WorkloadKind

LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesWorkload:
    """What runs the pods.

    Attributes:
        kind: Deployment or LeaderWorkerSet.
        name: its name.
        uid: unique id of the object.
        resource_version: changes with each change of the object, its status included.
        replicas: replicas that it should have.
        selector: label selector of its pods, of the leaders for a LeaderWorkerSet.
        is_observed: whether its controller has seen the last change of it.
        num_replicas: replicas of all versions that its controller counts.
        num_updated: those of the newest version.
        is_updating: whether it says itself that an update is in progress.
    """

    kind: WorkloadKind
    name: str
    uid: str
    resource_version: str
    replicas: int
    selector: str
    is_observed: bool
    num_replicas: int
    num_updated: int
    is_updating: bool


def parse_workload(kind: WorkloadKind, body: Mapping[str, Any]) -> KubernetesWorkload:
    """Return the workload of an object. Raises an error of MALFORMED if it is malformed."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    generation = int(metadata.get("generation") or 0)
    is_deployment = kind is WorkloadKind.DEPLOYMENT
    # older versions of LeaderWorkerSet do not report what they have observed
    observed = int(status.get("observedGeneration") or (0 if is_deployment else generation))
    conditions = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    name = str(metadata["name"])
    replicas = spec.get("replicas")
    return KubernetesWorkload(
        kind=kind, name=name, uid=str(metadata["uid"]),
        resource_version=str(metadata.get("resourceVersion") or ""), replicas=1 if replicas is None else int(replicas),
        selector=format_selector(spec["selector"]) if is_deployment else f"{LWS_NAME}={name},{LWS_WORKER_INDEX}=0",
        is_observed=observed >= generation, num_replicas=int(status.get("replicas") or 0),
        num_updated=int(status.get("updatedReplicas") or 0), is_updating=conditions.get("UpdateInProgress") == "True",
    )  # fmt: skip


def format_selector(selector: Mapping[str, Any]) -> str:
    """Return a selector object (matchLabels, matchExpressions) as the text of a query."""
    parts = [f"{name}={value}" for name, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or ():
        name, operator, values = each["key"], each["operator"], ",".join(each.get("values") or ())
        forms = {
            "In": f"{name} in ({values})", "NotIn": f"{name} notin ({values})", "Exists": name,
            "DoesNotExist": f"!{name}",
        }  # fmt: skip
        parts.append(forms[operator])
    return ",".join(parts)


def describe_rollout(workload: KubernetesWorkload, versions: Iterable[str]) -> str:
    """Return why a workload counts as being rolled out; "" if it does not.

    `versions` are those of its pods, and of its ReplicaSets that should have pods.
    """
    found = sorted(set(versions))
    if len(found) > 1:
        return f"it has replicas of {len(found)} versions: {', '.join(found)}"
    if workload.num_replicas > workload.num_updated and workload.kind is WorkloadKind.DEPLOYMENT:
        return f"{workload.num_updated} of its {workload.num_replicas} replicas have the newest version"
    return "it reports an update in progress" if workload.is_updating else ""
