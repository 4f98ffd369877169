"""view_replicas: each state of a placement group, its node and its actor becomes the right state of a replica."""

import pytest

from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.ray.placement_group_name import GroupName
from chairlift.cluster.ray.replica_view import ABSENT_SECONDS, STOP_MARGIN_SECONDS, RayReplica, view_replicas
from chairlift.cluster.ray.snapshot import ActorReport, ActorState, RayGroup, RayNode, RaySnapshot
from support_shares import for_each

NOW = 1_000_000.0
NODES = [
    RayNode(node_id="n" * 20, address="10.0.0.1", is_alive=True, resources={"CPU": 2.0}),
    RayNode(node_id="d" * 20, address="10.0.0.2", is_alive=False, resources={"CPU": 2.0}),
]
PENDING, RUNNING = PlacementState.PENDING, PlacementState.RUNNING
STOPPING, FAILED = PlacementState.STOPPING, PlacementState.FAILED


def name_of(number: int, age: float = 5.0, fleet: str = "a") -> GroupName:
    return GroupName(
        fleet=fleet, number=number, token="t", version="v", replica_type="gpu", started_seconds=NOW - age
    )  # fmt: skip


def view(state: str, node_id: str, report: ActorReport | None = None, *, age: float = 5.0, url: str = "") -> RayReplica:
    name = name_of(1, age)
    snapshot = RaySnapshot(
        nodes=NODES, groups=[RayGroup(name=name.text, state=state, node_id=node_id, bundle={"CPU": 4.0})],
        actors={} if report is None else {name.text: report},
    )  # fmt: skip
    urls = {name.replica_id: url} if url else {}
    (each,) = view_replicas(snapshot, "a", now=NOW, stop_timeout=10.0, urls=urls)
    return each


@for_each(
    ("report", "age", "url", "state", "reason"),
    [
        (ActorReport(state=ActorState.RUNNING, url="http://x"), 5, "", RUNNING, ""),
        (ActorReport(state=ActorState.STOPPING, stopping_seconds=3), 5, "http://x", STOPPING, "it drains for 3 s"),
        (
            ActorReport(state=ActorState.ENDED, exit_code=2, last_lines=["no model", " "]), 5, "", FAILED,
            "its process ended with exit code 2: no model",
        ),
        (
            ActorReport(state=ActorState.ENDED, exit_code=-9), 5, "", FAILED,
            "its process ended with exit code -9: its log is empty",
        ),
        (ActorReport(state=ActorState.DEAD, reason="node died"), 5, "", FAILED, "its actor died: node died"),
        (ActorReport(state=ActorState.SILENT), 500, "", PENDING, "its actor is being started"),
        (
            ActorReport(state=ActorState.SILENT), 5, "http://x", RUNNING,
            "its actor does not answer; Ray has not declared it dead",
        ),
        (ActorReport(state=ActorState.ABSENT), ABSENT_SECONDS - 1, "", PENDING, "its actor is being created"),
        (
            ActorReport(state=ActorState.ABSENT), ABSENT_SECONDS, "", FAILED,
            "its placement group has no actor: it died, or was never created",
        ),
        (None, ABSENT_SECONDS, "", FAILED, "its placement group has no actor: it died, or was never created"),
    ],
)  # fmt: skip
def test_the_actor_decides_the_state_of_a_placed_replica(
    report: ActorReport | None, age: float, url: str, state: PlacementState, reason: str
) -> None:
    each = view("CREATED", "n" * 20, report, age=age, url=url)
    assert (each.replica.state, each.replica.reason, each.is_placed) == (state, reason, True)
    assert each.is_own_failure == (report is not None and report.state in (ActorState.ENDED, ActorState.DEAD))


def test_a_replica_without_a_place_says_what_it_needs() -> None:
    each = view("PENDING", "")
    assert (each.replica.state, each.is_placed) == (PENDING, False)
    assert each.replica.reason == "the replica needs 4 CPUs: the largest of 1 node has 2 CPUs"


@pytest.mark.parametrize(
    ("state", "node_id", "reason"),
    [
        ("RESCHEDULING", "", "its node died, says Ray"),
        ("CREATED", "d" * 20, "its node 10.0.0.2/dddddddddddd died, says Ray"),
    ],
)
def test_a_replica_of_a_dead_node_has_failed_though_its_actor_is_silent(state: str, node_id: str, reason: str) -> None:
    each = view(state, node_id, ActorReport(state=ActorState.SILENT), url="http://x")
    assert (each.replica.state, each.replica.reason, each.replica.url) == (FAILED, reason, "http://x")
    assert not each.is_own_failure


def test_the_other_fields_are_those_of_the_name_and_the_node() -> None:
    replica = view(
        "CREATED", "n" * 20, ActorReport(state=ActorState.RUNNING, url="http://new"), url="http://old"
    ).replica
    assert (replica.replica_id, replica.url, replica.age_seconds) == ("a-1-t", "http://new", 5.0)
    assert (replica.version, replica.replica_type, replica.node) == ("v", "gpu", "10.0.0.1/nnnnnnnnnnnn")


@pytest.mark.parametrize(("seconds", "is_overdue"), [(29.0, False), (31.0, True)])
def test_a_replica_whose_stop_hangs_is_overdue(seconds: float, is_overdue: bool) -> None:
    assert STOP_MARGIN_SECONDS == 20.0
    report = ActorReport(state=ActorState.STOPPING, stopping_seconds=seconds)
    assert view("CREATED", "n" * 20, report).is_overdue is is_overdue


def test_other_fleets_are_left_out_and_the_oldest_comes_first() -> None:
    names = [name_of(1, age=1), name_of(2, age=9), name_of(3, fleet="b")]
    groups = [RayGroup(name=each.text, state="PENDING") for each in names]
    replicas = view_replicas(RaySnapshot(groups=groups), "a", now=NOW, stop_timeout=1.0, urls={})
    assert [each.name for each in replicas] == [names[1], names[0]]
