"""CrashLoopBackoff: doubles with each failure up to a maximum; a dead node adds none, and a long run ends it."""

from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.ray.crash_loop_backoff import MAX_DELAY_SECONDS, STABLE_SECONDS, CrashLoopBackoff
from support_ray_view import replica


def test_the_delay_doubles_with_each_failure_up_to_its_maximum() -> None:
    delay, failed = CrashLoopBackoff(), replica(1, PlacementState.FAILED, is_own_failure=True)
    delays = []
    for _ in range(10):
        delay.record([failed], [failed], 50.0)
        delays.append(delay.seconds_left("v", 50.0))
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 120.0, 120.0, MAX_DELAY_SECONDS]
    assert delay.seconds_left("v", 100.0) == 70.0
    assert delay.seconds_left("v", 170.1) == 0.0
    assert delay.seconds_left("other", 50.0) == 0.0


def test_several_failures_at_once_count_once() -> None:
    delay = CrashLoopBackoff()
    failed = [replica(number, PlacementState.FAILED, is_own_failure=True) for number in range(5)]
    delay.record(failed, failed, 0.0)
    assert delay.seconds_left("v", 0.0) == 1.0


def test_a_dead_node_delays_nothing() -> None:
    delay, failed = CrashLoopBackoff(), replica(1, PlacementState.FAILED)
    delay.record([failed], [failed], 0.0)
    assert delay.seconds_left("v", 0.0) == 0.0


def test_a_replica_that_runs_for_long_ends_the_delay() -> None:
    delay, failed = CrashLoopBackoff(), replica(1, PlacementState.FAILED, is_own_failure=True)
    for _ in range(5):
        delay.record([failed], [failed], 0.0)
    delay.record([replica(2, PlacementState.RUNNING, age=STABLE_SECONDS)], [], 0.0)
    assert delay.seconds_left("v", 0.0) == 16.0
    delay.record([replica(2, PlacementState.RUNNING, age=STABLE_SECONDS + 1)], [], 0.0)
    assert delay.seconds_left("v", 0.0) == 0.0
