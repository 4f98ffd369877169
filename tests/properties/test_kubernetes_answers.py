"""Whatever a Kubernetes API server answers: replicas, or a typed error."""

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cluster.cluster_replica import ClusterReplica
from chairlift.cluster.kubernetes.cluster import KubernetesCluster
from chairlift.core.cluster_errors import ClusterFailed
from chairlift.web.registry.json_client import JSONResponse

NAMES = (
    "metadata", "spec", "status", "items", "name", "uid", "labels", "annotations", "ownerReferences", "controller",
    "replicas", "selector", "matchLabels", "matchExpressions", "key", "operator", "values", "conditions", "type",
    "phase", "containerStatuses", "state", "waiting", "terminated", "reason", "restartCount", "exitCode", "containers",
    "ports", "containerPort", "podIP", "nodeName", "nodeSelector", "creationTimestamp", "deletionTimestamp",
    "generation", "observedGeneration", "continue", "resourceVersion",
)  # fmt: skip
TEXTS = ("", "1", "http", "Running", "Pending", "Failed", "2026-11-26T03:00:00Z", "x", "In", "True", "CrashLoopBackOff")
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-2, 2**63), st.floats(), st.sampled_from(TEXTS))
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=14,
)
DICTS = st.dictionaries(st.sampled_from(NAMES), JSON_VALUES, max_size=6)
WORKLOAD = {
    "metadata": {"name": "llm", "uid": "u", "generation": 1, "resourceVersion": "1"},
    "spec": {"selector": {"matchLabels": {"a": "b"}}},
}


class FakeJSON:
    """A client with one answer for each resource; others are lists without an item."""

    base_url = "http://fake"

    def __init__(self, **bodies: Any) -> None:
        self._bodies = bodies

    async def call(self, method: str, path: str, **_: Any) -> JSONResponse:
        plural = path.split("/namespaces/n/")[1].partition("/")[0]
        return JSONResponse(200, self._bodies.get(plural, {"metadata": {"resourceVersion": "1"}, "items": []}))

    async def close(self) -> None: ...


async def listed(kind: str, **bodies: Any) -> list[ClusterReplica]:
    cluster = KubernetesCluster(f"kubernetes://n/{kind}/llm?server=http://h", environ={})
    cluster._api._client = FakeJSON(**bodies)  # type: ignore[assignment]
    with contextlib.suppress(ClusterFailed):
        return list(await cluster.list())
    return []


def items(*found: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "items": list(found)}


@settings(max_examples=40, deadline=None)
@given(JSON_VALUES, DICTS)
def test_workloads(body: Any, spec: dict[str, Any]) -> None:
    async def scenario() -> None:
        for kind in ("deployment", "leaderworkerset"):
            for each in (body, {**WORKLOAD, "spec": spec}, {**WORKLOAD, "status": body}):
                assert await listed(kind, **{f"{kind}s": each}) == []

    asyncio.run(scenario())


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(DICTS, DICTS, DICTS, JSON_VALUES)
def test_pods(metadata: dict[str, Any], spec: dict[str, Any], status: dict[str, Any], replica_set: Any) -> None:
    metadata = {
        "uid": "p", "creationTimestamp": "2026-11-26T03:00:00Z", "name": "pod",
        "ownerReferences": [{"uid": "set", "kind": "StatefulSet", "name": "llm", "controller": True}], **metadata,
    }  # fmt: skip
    pods = items({"metadata": metadata, "spec": spec, "status": status})
    owner = {"metadata": {"name": "set", "uid": "set", "ownerReferences": [{"uid": "u", "controller": True}]}}

    async def scenario() -> None:
        for kind in ("deployment", "leaderworkerset"):
            for sets in (items(owner), items(replica_set), items({**owner, "spec": replica_set})):
                for each in await listed(kind, **{f"{kind}s": WORKLOAD}, pods=pods, replicasets=sets):
                    assert isinstance(each, ClusterReplica) and len(each.reason) <= 300

    asyncio.run(scenario())
