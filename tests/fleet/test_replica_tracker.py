"""ReplicaTracker: the state of a replica from its cluster's and its own report."""

from dataclasses import replace
from typing import Any

import pytest

from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.core.load_report import ReplicaState
from chairlift.fleet.replica_tracker import ReplicaTracker
from chairlift.router.health.replica_load import ReplicaLoad, parse_load
from support_shares import for_each

PENDING, RUNNING, STOPPING = PlacementState.PENDING, PlacementState.RUNNING, PlacementState.STOPPING
URL = "http://a"


def replica(state: PlacementState = RUNNING, age: float = 1.0) -> ClusterReplica:
    return ClusterReplica(
        replica_id="a", url=URL, state=state, age_seconds=age, version="v", replica_type="t", reason="why"
    )


def load(state: str = "ready", **numbers: Any) -> dict[str, ReplicaLoad]:
    return {URL: parse_load({"state": state, **numbers}, 0.0)}


@for_each(("placement", "report", "is_draining", "state"), [
    (PENDING, {}, False, "starting"), (RUNNING, {}, False, "starting"), (RUNNING, load("starting"), False, "starting"),
    (RUNNING, load("ready"), False, "ready"), (RUNNING, load("draining"), False, "draining"),
    (RUNNING, load("ready"), True, "draining"), (STOPPING, load("ready"), False, "draining"),
])  # fmt: skip
def test_the_first_look(placement: PlacementState, report: Any, is_draining: bool, state: str) -> None:
    pool = ReplicaTracker().update([replica(placement)], report, {"a"} if is_draining else set(), 0.0)
    (sample,) = pool.samples
    assert (sample.state, sample.version, sample.replica_type) == (state, "v", "t")
    assert pool.serving == (("a",) if placement is RUNNING and report == load("ready") else ())


def test_a_replica_whose_engine_starts_again_is_capacity_that_comes_back_and_still_serves() -> None:
    tracker = ReplicaTracker()
    tracker.update([replica()], load("ready"), set(), 0.0)
    pool = tracker.update([replica()], load("dead"), set(), 1.0)
    assert pool.samples[0].state is ReplicaState.STARTING and pool.serving == ("a",)


def test_numbers_that_a_report_does_not_have_are_missing_and_a_zero_is_a_zero() -> None:
    pool = ReplicaTracker().update([replica()], load(waiting_requests=0, running_requests=3), set(), 0.0)
    (sample,) = pool.samples
    assert (sample.waiting_requests, sample.running_requests) == (0, 3)
    assert sample.waiting_tokens is None and sample.kv_usage_ratio is None
    assert (sample.cpu_ratio, sample.gpu_ratio) == (None, None)
    used = load(cpu_ratio=0, memory_ratio=0.5, gpu_ratio=0.25, gpu_memory_ratio=None)
    (sample,) = ReplicaTracker().update([replica()], used, set(), 0.0).samples
    ratios = (sample.cpu_ratio, sample.memory_ratio, sample.gpu_ratio, sample.gpu_memory_ratio)
    assert ratios == (0, 0.5, 0.25, None)
    unknown = load(prefill_tokens_per_second=0, output_tokens_per_second=0, max_running_requests=0)
    (sample,) = ReplicaTracker().update([replica()], unknown, set(), 0.0).samples
    speeds = (sample.prefill_tokens_per_second, sample.output_tokens_per_second, sample.max_running_requests)
    assert speeds == (None, None, None), "these are unknown until the first request"


def test_a_failed_replica_is_no_sample_and_has_its_reason() -> None:
    pool = ReplicaTracker().update([replica(PlacementState.FAILED)], load(), set(), 0.0)
    assert pool.samples == () and pool.serving == () and pool.failed == {"a": "why"}


@pytest.mark.parametrize(("silence", "is_stuck"), [(60.0, False), (60.5, True)])
def test_a_replica_that_does_not_answer_for_a_minute_is_stuck(silence: float, is_stuck: bool) -> None:
    tracker = ReplicaTracker()
    tracker.update([replica()], load(), set(), 0.0)
    for now in range(0, int(silence), 5):
        tracker.update([replica()], {}, set(), float(now))
    pool = tracker.update([replica()], {}, set(), silence)
    assert list(pool.stuck) == (["a"] if is_stuck else []) and pool.samples[0].state is ReplicaState.READY
    assert not tracker.update([replica(STOPPING)], {}, set(), silence).stuck
    assert not tracker.update([replica()], {}, {"a"}, silence).stuck, "it drains: its stop is on the way"


def test_the_time_in_which_the_tracker_itself_was_stopped_does_not_count() -> None:
    tracker = ReplicaTracker()
    tracker.update([replica()], load(), set(), 0.0)
    assert not tracker.update([replica()], {}, set(), 3600.0).stuck
    assert not tracker.update([replica()], {}, set(), 3650.0).stuck
    for now in range(3650, 3700, 5):
        tracker.update([replica()], {}, set(), float(now))
    assert tracker.update([replica()], {}, set(), 3700.0).stuck


def test_the_time_of_a_start_counts_from_the_first_look_and_not_from_the_order() -> None:
    tracker = ReplicaTracker()
    assert not tracker.update([replica(age=100_000)], load("starting"), set(), 10.0).stuck
    assert not tracker.update([replica(age=100_000)], load("starting"), set(), 1810.0).stuck
    stuck = tracker.update([replica(age=100_000)], load("starting"), set(), 1811.0).stuck
    assert stuck["a"].reason == "it was not ready within 1800 s" and not stuck["a"].was_ready


def test_the_time_of_a_start_counts_again_once_a_pending_replica_runs() -> None:
    tracker = ReplicaTracker()
    tracker.update([], {}, set(), 0.0)
    tracker.update([placed("")], {}, set(), 0.0)
    tracker.update([placed("n")], {}, set(), 1700.0)
    tracker.update([replica()], {}, set(), 3400.0)
    assert not tracker.update([replica()], {}, set(), 5200.0).stuck
    assert tracker.update([replica()], {}, set(), 5201.0).stuck


@pytest.mark.parametrize("node", ["", "n"])
def test_a_pending_replica_is_stuck_only_if_it_has_a_machine(node: str) -> None:
    tracker = ReplicaTracker()
    tracker.update([], {}, set(), 0.0)
    tracker.update([placed(node)], {}, set(), 0.0)
    assert not tracker.update([placed(node)], {}, set(), 1800.0).stuck
    reasons = [each.reason for each in tracker.update([placed(node)], {}, set(), 1801.0).stuck.values()]
    assert reasons == (["it was not running within 1800 s"] if node else [])


def test_a_pending_replica_that_was_there_before_needs_no_answer_of_another_one() -> None:
    tracker = ReplicaTracker()
    tracker.update([placed("n")], {}, set(), 0.0)
    assert tracker.update([placed("n")], {}, set(), 1801.0).stuck


def placed(node: str) -> ClusterReplica:
    return replace(replica(PENDING), node=node)


def test_a_replica_that_was_there_before_and_never_answered_needs_the_answer_of_another_one() -> None:
    """A process that was started again with a wrong key reads no report of the healthy fleet that it finds."""
    tracker, other = ReplicaTracker(), replace(replica(), replica_id="b", url="http://b")
    tracker.update([replica(), other], {}, set(), 0.0)
    assert not tracker.update([replica(), other], {}, set(), 4000.0).stuck
    pool = tracker.update([replica(), other], {"http://b": load()[URL]}, set(), 4001.0)
    assert list(pool.stuck) == ["a"]


def test_an_id_that_was_gone_is_a_new_replica() -> None:
    tracker = ReplicaTracker()
    tracker.update([replica()], load(), set(), 0.0)
    tracker.update([], {}, set(), 1.0)
    assert tracker.update([replica()], {}, set(), 2.0).samples[0].state is ReplicaState.STARTING
