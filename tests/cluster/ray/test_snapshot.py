"""RaySnapshot: what the driver process sends is read back, and an actor of another version may send less or more."""

import msgspec
import pytest

from chairlift.cluster.ray.snapshot import ActorReport, ActorState, RayGroup, RayNode, RaySnapshot, to_snapshot


def test_a_snapshot_is_read_back_as_it_was_sent() -> None:
    sent = RaySnapshot(
        nodes=[RayNode(node_id="n", address="h", is_alive=True, resources={"CPU": 2.0})],
        groups=[RayGroup(name="g", state="CREATED", node_id="n", bundle={"CPU": 1.0})],
        actors={"g": ActorReport(state=ActorState.ENDED, exit_code=3, last_lines=["no model"])},
    )
    assert to_snapshot(msgspec.json.decode(msgspec.json.encode(sent))) == sent


def test_fields_of_another_version_are_ignored_and_have_defaults() -> None:
    read = to_snapshot({"actors": {"g": {"state": "running", "new_field": 1}}})
    assert read.actors["g"] == ActorReport(state=ActorState.RUNNING)


def test_an_unknown_state_is_an_error() -> None:
    with pytest.raises(msgspec.ValidationError):
        to_snapshot({"actors": {"g": {"state": "sleeping"}}})
