"""removal_order.py: the order in which pods go, and how many remain."""

import random
from typing import Any

import pytest

from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.cluster.kubernetes.pod_removal_order import LOW_COST, order_of_removal, target_without
from chairlift.cluster.kubernetes.pods import Pod
from chairlift.cluster.kubernetes.workload_url import WorkloadKind
from support_kubernetes_controllers import deletion_rank
from support_kubernetes_objects import COST
from support_shares import for_each

DEPLOYMENT, LEADER_WORKER_SET = WorkloadKind.DEPLOYMENT, WorkloadKind.LEADER_WORKER_SET


def pod(name: str, **fields: Any) -> Pod:
    given = {
        "uid": name, "owners": ("set",), "owner_names": (("ReplicaSet", "set"),), "is_active": True, "phase": "Running",
        "is_assigned": True, "is_ready": True, "created": 0.0, "index": 0, "deletion_cost": None, "previous_cost": None,
    }  # fmt: skip
    replica = ClusterReplica(replica_id=name, state=PlacementState.RUNNING)
    return Pod(**{"replica": replica, "name": name, **given, **fields})


def names(pods: list[Pod]) -> str:
    return "".join(each.name for each in pods)


def test_the_state_decides_before_the_preference_and_the_age_comes_last() -> None:
    pods = [
        pod("a", created=1), pod("b", created=2), pod("c", is_ready=False), pod("d", phase="Pending", is_ready=False),
        pod("e", phase="Pending", is_ready=False, is_assigned=False), pod("f", is_active=False), pod("g", created=3),
        pod("h", phase="Odd", is_ready=False), pod("i", created=9, deletion_cost="5"), pod("j", deletion_cost="-5"),
    ]  # fmt: skip
    assert names(order_of_removal(DEPLOYMENT, pods, ())) == "edhcjgbai"
    assert names(order_of_removal(DEPLOYMENT, pods, ("a", "i", "c"))) == "edhcaijgb"
    assert names(order_of_removal(DEPLOYMENT, [pod("a", deletion_cost="x"), pod("b", deletion_cost="1")], ())) == "ab"
    ours = [pod("a", deletion_cost=str(LOW_COST), previous_cost=""), pod("b", created=1)]
    assert names(order_of_removal(DEPLOYMENT, ours, ())) == "ba"  # a cost of ours that is taken back


@for_each("seed", range(20))
def test_the_order_is_that_of_a_replica_set(seed: int) -> None:
    """Random pods: the set that goes is that of the simulated controller, which reads the annotations."""
    rng = random.Random(seed)
    pods, bodies = [], {}
    for number in range(12):
        phase = rng.choice(["Pending", "Running", "Running", "Running"])
        fields = {
            "phase": phase, "is_assigned": phase == "Running" or rng.random() < 0.5, "created": float(number),
            "is_ready": phase == "Running" and rng.random() < 0.7,
        }  # fmt: skip
        pods.append(pod(f"p{number:02d}", **fields))
    remove = [each.name for each in rng.sample(pods, 5)]
    for each in pods:
        ready = {"type": "Ready", "status": str(each.is_ready)}
        annotations = {COST: str(LOW_COST)} if each.name in remove else {}
        bodies[each.name] = {
            "metadata": {"creationTimestamp": f"2026-11-26T03:00:{int(each.created):02d}Z", "annotations": annotations},
            "spec": {"nodeName": "n" if each.is_assigned else ""},
            "status": {"phase": each.phase, "conditions": [ready]},
        }  # fmt: skip
    order = [each.name for each in order_of_removal(DEPLOYMENT, pods, remove)]
    ranks = [deletion_rank(bodies[name])[:4] for name in order]
    assert ranks == sorted(ranks) and sorted(order) == sorted(bodies)


def test_the_highest_index_goes_whatever_is_preferred() -> None:
    pods = [pod("a", index=0), pod("b", index=2, is_ready=False), pod("c", index=10), pod("d", index=1)]
    assert names(order_of_removal(LEADER_WORKER_SET, pods, ("a",))) == "cbda"


@for_each(("replicas", "ids", "marked", "target"), [
    (4, "a", "", 3), (4, "ab", "", 2), (4, "xa", "", 3), (4, "", "", 4), (4, "abcd", "", 0),
    (3, "a", "a", 3),   # four pods for three replicas: an earlier call has taken it off
    (3, "ab", "a", 2), (3, "b", "a", 2), (4, "a", "a", 3), (2, "abc", "ab", 1), (6, "a", "", 5), (1, "abcd", "", 0),
])  # fmt: skip
def test_how_many_remain_of_a_deployment(replicas: int, ids: str, marked: str, target: int) -> None:
    pods = [pod(name, previous_cost="" if name in marked else None) for name in "abcd"]
    pods.append(pod("x", is_active=False))
    assert target_without(DEPLOYMENT, replicas, pods, list(ids)) == target


@pytest.mark.parametrize(("replicas", "ids", "target"), [(4, "d", 3), (3, "d", 3), (3, "cd", 2), (4, "abcd", 0)])
def test_how_many_remain_of_a_leader_worker_set(replicas: int, ids: str, target: int) -> None:
    pods = [pod(name, index=index) for index, name in enumerate("abcd")]
    assert target_without(LEADER_WORKER_SET, replicas, pods, list(ids)) == target
