"""view_replicas: the replicas of a fleet as ClusterReplica, from what Ray says; pure.

group of Ray        its actor      replica
PENDING             -              PENDING, with what is missing
RESCHEDULING        -              FAILED: its node died, and the new place that Ray looks for has no use
CREATED             absent         PENDING when young, FAILED later
                    silent         PENDING before its first answer, RUNNING after it
                    dead, ended    FAILED
                    running        RUNNING
                    stopping       STOPPING
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.cluster.ray.placement import missing_resources
from chairlift.cluster.ray.placement_group_name import GroupName
from chairlift.cluster.ray.snapshot import ActorReport, ActorState, RayGroup, RayNode, RaySnapshot

ABSENT_SECONDS = 15.0
"""A placement group of this age without an actor has failed. A controller creates both within a second."""

STOP_MARGIN_SECONDS = 20.0
"""A replica that stops for longer than its timeout and this is removed: its actor hangs."""


@dataclass(frozen=True, slots=True)
class RayReplica:
    """A replica with its name in Ray.

    Attributes:
        name: parts of the placement group's name.
        replica: what the cluster's callers see.
        is_placed: whether its bundle has a node.
        is_overdue: whether it was to have stopped, and only removing its placement group can help.
        is_own_failure: whether its process or actor ended without its node, so that the next one may fail, too.
    """

    name: GroupName
    replica: ClusterReplica
    is_placed: bool = False
    is_overdue: bool = False
    is_own_failure: bool = False


def view_replicas(
    snapshot: RaySnapshot, fleet: str, *, now: float, stop_timeout: float, urls: Mapping[str, str]
) -> list[RayReplica]:
    """Return the replicas, the oldest first. `urls` are those of earlier snapshots, by replica id."""
    nodes = {node.node_id: node for node in snapshot.nodes}
    result = []
    for group in snapshot.groups:
        name = GroupName.parse(group.name, fleet)
        if name is not None:
            each = _view(name, group, snapshot, nodes, now=now, url=urls.get(name.replica_id, ""))
            report = snapshot.actors.get(group.name)
            is_overdue = report is not None and report.stopping_seconds > stop_timeout + STOP_MARGIN_SECONDS
            result.append(replace(each, is_overdue=is_overdue))
    return sorted(result, key=lambda each: (each.name.started_seconds, each.name.number))


def _view(
    name: GroupName, group: RayGroup, snapshot: RaySnapshot, nodes: Mapping[str, RayNode], *, now: float, url: str
) -> RayReplica:
    node = nodes.get(group.node_id)
    age = max(0.0, now - name.started_seconds)
    replica = ClusterReplica(
        replica_id=name.replica_id, state=PlacementState.PENDING, age_seconds=age, version=name.version,
        node=_show_node(node) if node else group.node_id, replica_type=name.replica_type,
    )  # fmt: skip
    if group.state == "RESCHEDULING":
        reason = "its node died, says Ray"
        return RayReplica(name, replace(replica, state=PlacementState.FAILED, url=url, reason=reason), is_placed=True)
    if group.state != "CREATED":
        return RayReplica(
            name, replace(replica, reason=missing_resources(group.bundle, snapshot.nodes, snapshot.groups))
        )
    if node is not None and not node.is_alive:
        reason = f"its node {replica.node} died, says Ray"
        return RayReplica(name, replace(replica, state=PlacementState.FAILED, url=url, reason=reason), is_placed=True)
    report = snapshot.actors.get(group.name, ActorReport(state=ActorState.ABSENT))
    state, reason = _actor_state(report, age, url)
    return RayReplica(
        name, replace(replica, state=state, url=report.url or url, reason=reason), is_placed=True,
        is_own_failure=report.state in (ActorState.ENDED, ActorState.DEAD),
    )  # fmt: skip


def _actor_state(report: ActorReport, age: float, url: str) -> tuple[PlacementState, str]:
    match report.state:
        case ActorState.RUNNING:
            return PlacementState.RUNNING, ""
        case ActorState.STOPPING:
            return PlacementState.STOPPING, f"it drains for {report.stopping_seconds:.0f} s"
        case ActorState.ENDED:
            last = next((line for line in reversed(report.last_lines) if line.strip()), "its log is empty")
            return PlacementState.FAILED, f"its process ended with exit code {report.exit_code}: {last.strip()}"
        case ActorState.DEAD:
            return PlacementState.FAILED, f"its actor died: {report.reason}"
        case ActorState.SILENT if url:
            return PlacementState.RUNNING, "its actor does not answer; Ray has not declared it dead"
        case ActorState.SILENT:
            return PlacementState.PENDING, "its actor is being started"
    if age < ABSENT_SECONDS:
        return PlacementState.PENDING, "its actor is being created"
    return PlacementState.FAILED, "its placement group has no actor: it died, or was never created"


def _show_node(node: RayNode) -> str:
    return f"{node.address}/{node.node_id[:12]}"
