"""Rules of the Kubernetes API that need no state: label selectors, merge patches, roles, Status objects."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

COST = "controller.kubernetes.io/pod-deletion-cost"
USER = "system:serviceaccount:default:chairlift-autoscaler"

ROOTS = {
    "pods": ("/api/v1", "v1", "Pod"),
    "deployments": ("/apis/apps/v1", "apps/v1", "Deployment"),
    "replicasets": ("/apis/apps/v1", "apps/v1", "ReplicaSet"),
    "endpointslices": ("/apis/discovery.k8s.io/v1", "discovery.k8s.io/v1", "EndpointSlice"),
    "horizontalpodautoscalers": ("/apis/autoscaling/v2", "autoscaling/v2", "HorizontalPodAutoscaler"),
    "leaderworkersets": (
        "/apis/leaderworkerset.x-k8s.io/v1", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
    ),
}  # fmt: skip
"""Path before /namespaces, apiVersion and kind of each resource."""

REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
    415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests",
}  # fmt: skip


def status_body(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": REASONS.get(code, "InternalError"), "code": code}  # fmt: skip


def status(code: int, message: str, **headers: str) -> web.Response:
    return web.json_response(status_body(code, message), status=code, headers=headers)


def has_labels(body: Mapping[str, Any], selector: str) -> bool:
    """Return whether all requirements of a label selector hold."""
    labels = body["metadata"].get("labels") or {}
    return all(_holds(part.strip(), labels) for part in re.split(r",(?![^(]*\))", selector) if part.strip())


def _holds(part: str, labels: Mapping[str, str]) -> bool:
    if found := re.fullmatch(r"(\S+) (in|notin) \(([^)]*)\)", part):
        name, operator, values = found.groups()
        is_in = labels.get(name) in {each.strip() for each in values.split(",")}
        return is_in if operator == "in" else not is_in
    if found := re.fullmatch(r"([^=!\s]+)(==?|!=)(.*)", part):
        name, operator, value = found.groups()
        return (labels.get(name) == value) is (operator != "!=")
    return part.removeprefix("!") not in labels if part.startswith("!") else part in labels


def apply_merge_patch(old: Any, patch: Any) -> Any:
    """Return the result of a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_merge_patch(result.get(name), value)
    return result


def wants_patch(content_type: str) -> bool:
    """Return whether a patch of this type is served; a strategic one is the same where no list changes."""
    return content_type in {"application/merge-patch+json", "application/strategic-merge-patch+json"}


def is_allowed(rules: Iterable[Mapping[str, Sequence[str]]], verb: str, group: str, resource: str) -> bool:
    """Return whether a rule of a Role permits a call."""
    return any(verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"] for rule in rules)
