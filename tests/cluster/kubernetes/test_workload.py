"""workload.py: selectors, generations, and what counts as a rollout."""

from typing import Any

import pytest

from chairlift.cluster.kubernetes.workload import KubernetesWorkload, describe_rollout, format_selector, parse_workload
from chairlift.cluster.kubernetes.workload_url import WorkloadKind
from support_kubernetes_objects import has_labels
from support_shares import for_each

DEPLOYMENT, LEADER_WORKER_SET = WorkloadKind.DEPLOYMENT, WorkloadKind.LEADER_WORKER_SET


def workload(kind: WorkloadKind = DEPLOYMENT, *, spec: Any = None, **status: Any) -> KubernetesWorkload:
    metadata = {"name": "llm", "uid": "u", "generation": 3}
    spec = {"selector": {"matchLabels": {"app": "llm"}}, **(spec or {})}
    return parse_workload(kind, {"metadata": metadata, "spec": spec, "status": status})


def test_a_selector_selects_what_its_object_says() -> None:
    expressions = [
        {"key": "zone", "operator": "In", "values": ["a", "b"]}, {"key": "tier", "operator": "NotIn", "values": ["x"]},
        {"key": "gpu", "operator": "Exists"}, {"key": "old", "operator": "DoesNotExist"},
    ]  # fmt: skip
    text = format_selector({"matchLabels": {"app": "llm"}, "matchExpressions": expressions})
    assert text == "app=llm,zone in (a,b),tier notin (x),gpu,!old"
    labels = {"app": "llm", "zone": "b", "gpu": ""}
    assert has_labels({"metadata": {"labels": labels}}, text)
    for change in ({"app": "x"}, {"zone": "c"}, {"tier": "x"}, {"old": "1"}):
        assert not has_labels({"metadata": {"labels": labels | change}}, text)
    assert not has_labels({"metadata": {"labels": {"app": "llm", "zone": "a"}}}, text)


def test_the_number_of_replicas_is_one_where_none_is_given() -> None:
    assert workload().replicas == 1
    assert workload(spec={"replicas": 0}).replicas == 0


@for_each(("kind", "observed", "is_observed"), [
    (DEPLOYMENT, None, False), (DEPLOYMENT, 2, False), (DEPLOYMENT, 3, True),
    (LEADER_WORKER_SET, None, True), (LEADER_WORKER_SET, 2, False), (LEADER_WORKER_SET, 3, True),
])  # fmt: skip
def test_whether_the_controller_has_seen_the_last_change(
    kind: WorkloadKind, observed: int | None, is_observed: bool
) -> None:
    assert workload(kind, **({} if observed is None else {"observedGeneration": observed})).is_observed is is_observed


def test_a_leader_worker_set_is_its_leaders() -> None:
    selector = workload(LEADER_WORKER_SET).selector
    assert selector == "leaderworkerset.sigs.k8s.io/name=llm,leaderworkerset.sigs.k8s.io/worker-index=0"


@pytest.mark.parametrize(("status", "versions", "message"), [
    ({"replicas": 3, "updatedReplicas": 3}, ["b", "b"], ""), ({}, [], ""),
    ({"replicas": 3, "updatedReplicas": 3}, ["b", "a", "b"], "it has replicas of 2 versions: a, b"),
    ({"replicas": 3, "updatedReplicas": 1}, ["b"], "1 of its 3 replicas have the newest version"),
    ({"replicas": 3}, ["a"], "0 of its 3 replicas"),
])  # fmt: skip
def test_rollouts_of_a_deployment(status: dict[str, Any], versions: list[str], message: str) -> None:
    found = describe_rollout(workload(**status), versions)
    assert found.startswith(message) and bool(found) is bool(message)


@pytest.mark.parametrize(("state", "versions", "is_rollout"), [
    ("False", ["a"], False), ("True", ["a"], True), ("False", ["a", "b"], True),
])  # fmt: skip
def test_rollouts_of_a_leader_worker_set(state: str, versions: list[str], is_rollout: bool) -> None:
    conditions = [{"type": "Available", "status": "True"}, {"type": "UpdateInProgress", "status": state}]
    status = {"replicas": 2, "conditions": conditions}
    assert bool(describe_rollout(workload(LEADER_WORKER_SET, **status), versions)) is is_rollout
