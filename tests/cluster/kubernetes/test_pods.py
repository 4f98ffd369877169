"""pods.py: states, reasons and URLs of pods as the API server describes them."""

from typing import Any

import pytest

from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.kubernetes.pods import Pod, parse_pod
from chairlift.cluster.kubernetes.workload_url import parse_workload_url
from support_shares import for_each

PENDING, RUNNING, STOPPING, FAILED = (
    PlacementState.PENDING, PlacementState.RUNNING, PlacementState.STOPPING, PlacementState.FAILED,
)  # fmt: skip
PORTS = [{"name": "metrics", "containerPort": 9000}, {"name": "http", "containerPort": 8000}, {"containerPort": 7000}]


def pod(
    status: dict[str, Any], *, node: str = "node-1", kind: str = "deployment", options: str = "", **metadata: Any
) -> Pod:
    body = {
        "metadata": {
            "name": "llm-abc", "uid": "0123456789", "creationTimestamp": "2026-11-26T03:00:00Z",
            "labels": {"pod-template-hash": "abc", "leaderworkerset.sigs.k8s.io/template-revision-hash": "def",
                       "leaderworkerset.sigs.k8s.io/group-index": "4"}, **metadata,
        },
        "spec": {"containers": [{"ports": PORTS}], "nodeName": node,
                 "nodeSelector": {"node.kubernetes.io/instance-type": "g5.xlarge"}},
        "status": status,
    }  # fmt: skip
    url = parse_workload_url(f"kubernetes://n/{kind}/llm?server=http://h{options}", environ={})
    return parse_pod(body, url, 1_795_662_010.0)


def waiting(reason: str, message: str = "", **fields: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    return {"phase": "Pending", "containerStatuses": [{"name": "replica", "state": state, **fields}]}


def condition(name: str, state: str, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": name, "status": state, "reason": reason, "message": message}]}


KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
RUNS = {"phase": "Running", "podIP": "10.0.0.1"}


@for_each(("status", "fields", "state", "reason"), [
    ({}, {"node": ""}, PENDING, "it has no node yet"),
    ({"phase": "Pending", **condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")},
     {"node": ""}, PENDING, "Unschedulable: 0/3 nodes are available"),
    ({"phase": "Pending"}, {}, PENDING, "ContainerCreating"),
    (waiting("ContainerCreating"), {}, PENDING, "ContainerCreating"),
    (waiting("PodInitializing"), {}, PENDING, "PodInitializing"),
    (waiting("ImagePullBackOff", "no such image"), {}, FAILED, "container replica: ImagePullBackOff: no such image"),
    (waiting("ErrImagePull"), {}, FAILED, "container replica: ErrImagePull"),
    ({**waiting("CrashLoopBackOff", lastState=KILLED, restartCount=4), "phase": "Running"}, {}, FAILED,
     "container replica: CrashLoopBackOff; container replica ended with OOMKilled, exit code 137, 4 restarts"),
    ({"phase": "Pending", "initContainerStatuses": waiting("CreateContainerConfigError")["containerStatuses"]}, {},
     FAILED, "container replica: CreateContainerConfigError"),
    ({**RUNS, **condition("Ready", "True")}, {}, RUNNING, ""),
    (RUNS, {}, RUNNING, "it is not ready"),
    ({**RUNS, **condition("Ready", "False", "ContainersNotReady", "replica")}, {}, RUNNING,
     "ContainersNotReady: replica"),
    ({**RUNS, "containerStatuses": [{"name": "a", "state": {"running": {}}, "lastState": KILLED, "restartCount": 1}]},
     {}, RUNNING, "it is not ready; container a ended with OOMKilled, exit code 137, 1 restarts"),
    ({"phase": "Unknown"}, {}, RUNNING, "its node does not report"),
    ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, {}, FAILED, "Evicted: low on memory"),
    ({"phase": "Failed", "containerStatuses": [{"name": "a", "state": KILLED}]}, {}, FAILED,
     "container a ended with OOMKilled, exit code 137, 0 restarts"),
    ({"phase": "Succeeded"}, {}, FAILED, "its phase is Succeeded"),
    ({**RUNS, **condition("Ready", "True")}, {"deletionTimestamp": "2026-11-26T03:00:05Z"}, STOPPING, "it terminates"),
])  # fmt: skip
def test_states(status: dict[str, Any], fields: dict[str, Any], state: PlacementState, reason: str) -> None:
    replica = pod(status, **fields).replica
    assert (replica.state, replica.reason) == (state, reason)


def test_what_a_replica_is() -> None:
    found = pod({**RUNS, **condition("Ready", "True")})
    replica = found.replica
    assert (replica.replica_id, replica.version, replica.node) == ("llm-abc", "abc", "node-1")
    assert (replica.age_seconds, replica.replica_type) == (10.0, "g5.xlarge")
    assert found.is_active and found.is_ready and found.is_assigned and found.index == 0
    assert pod({}, creationTimestamp="2026-11-26T04:00:00Z").replica.age_seconds == 0.0  # the clocks differ


def test_a_group_of_a_leader_worker_set_gets_a_new_id_with_each_new_leader() -> None:
    found = pod(RUNS, kind="leaderworkerset")
    assert (found.replica.replica_id, found.replica.version, found.index) == ("llm-abc.01234567", "def", 4)
    assert pod(RUNS, kind="leaderworkerset", uid="99999999").replica.replica_id == "llm-abc.99999999"


@for_each(("options", "address", "url"), [
    ("", "10.0.0.1", "http://10.0.0.1:8000"), ("&port=metrics&scheme=https", "10.0.0.1", "https://10.0.0.1:9000"),
    ("&port=7000", "fd00::1", "http://[fd00::1]:7000"), ("&port=1234", "10.0.0.1", "http://10.0.0.1:1234"),
    ("", "", ""), ("&port=web", "10.0.0.1", ""),
])  # fmt: skip
def test_the_url(options: str, address: str, url: str) -> None:
    replica = pod({"phase": "Running", "podIP": address, **condition("Ready", "True")}, options=options).replica
    assert replica.url == url
    reason = "it has no container port 'web'; its ports are: metrics, http, 7000"
    assert replica.reason == (reason if "web" in options else "")


@pytest.mark.parametrize(("fields", "is_active"), [
    ({"phase": "Pending"}, True), ({"phase": "Unknown"}, True), ({"phase": "Failed"}, False),
    ({"phase": "Succeeded"}, False),
])  # fmt: skip
def test_pods_that_have_ended_are_not_counted(fields: dict[str, Any], is_active: bool) -> None:
    assert pod(fields).is_active is is_active
    assert not pod(fields, deletionTimestamp="2026-11-26T03:00:05Z").is_active


def test_a_long_reason_is_cut() -> None:
    assert len(pod(waiting("ErrImagePull", "x" * 9000)).replica.reason) == 300
