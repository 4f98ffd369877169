"""resources.py: paths and role names of resources."""

import pytest

from chairlift.cluster.kubernetes.api_resources import DEPLOYMENTS, LEADER_WORKER_SETS, PODS, Resource


@pytest.mark.parametrize(("resource", "name", "path", "role_name"), [
    (PODS, "", "/api/v1/namespaces/a%2Fb/pods", "pods"),
    (PODS, "x/../y", "/api/v1/namespaces/a%2Fb/pods/x%2F..%2Fy", "pods"),
    (DEPLOYMENTS.scale, "llm", "/apis/apps/v1/namespaces/a%2Fb/deployments/llm/scale", "deployments/scale"),
    (LEADER_WORKER_SETS, "llm", "/apis/leaderworkerset.x-k8s.io/v1/namespaces/a%2Fb/leaderworkersets/llm",
     "leaderworkersets"),
])  # fmt: skip
def test_paths(resource: Resource, name: str, path: str, role_name: str) -> None:
    assert (resource.path("a/b", name), resource.role_name) == (path, role_name)
