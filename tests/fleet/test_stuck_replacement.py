"""StuckReplacement: stuck replicas are replaced one after another; one that runs on is stopped again."""

from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.fleet.replica_tracker import StuckReplica, TrackedPool
from chairlift.fleet.stuck_replacement import StuckReplacement

PENDING, RUNNING, STOPPING = PlacementState.PENDING, PlacementState.RUNNING, PlacementState.STOPPING

URL = "http://a"


def replica(state: PlacementState = RUNNING, age: float = 1.0) -> ClusterReplica:
    return ClusterReplica(
        replica_id="a", url=URL, state=state, age_seconds=age, version="v", replica_type="t", reason="why"
    )


def pool_of(*stuck: str, seen_at: float = 0.0, answered_at: float = 0.0, ready_at: float = 0.0) -> TrackedPool:
    found = {name: StuckReplica(reason="silent", seen_at=seen_at, was_ready=True) for name in stuck}
    return TrackedPool(stuck=found, answered_at=answered_at, became_ready_at=ready_at)


def test_stuck_replicas_are_replaced_one_after_another() -> None:
    replacement = StuckReplacement(start_seconds=100.0)
    assert replacement.candidates(pool_of("a", "b", "c"), 10.0) == ("a", "b", "c")
    replacement.note_stopped("a", 10.0)
    for answered_at in (0.0, 50.0):
        assert replacement.candidates(pool_of("b", "c", answered_at=answered_at), 50.0) == ()
    assert replacement.candidates(pool_of("b", "c", ready_at=20.0), 50.0) == ("b", "c"), "the new one is ready"
    assert replacement.candidates(pool_of("b", "c"), 1000.0) == (), "no replica answers at all"
    assert replacement.candidates(pool_of("b", "c", answered_at=1000.0), 1000.0) == ("b", "c")
    assert replacement.candidates(pool_of("d", seen_at=11.0), 1000.0) == ("d",), "it was started for the other one"


def test_a_replica_that_runs_on_is_stopped_again_after_a_minute() -> None:
    replacement = StuckReplacement(start_seconds=100.0)
    replacement.note_stopped("a", 10.0)
    pool = pool_of("b", "a", ready_at=20.0)
    assert replacement.candidates(pool, 69.0) == () and replacement.candidates(pool, 70.0) == ("a",)
