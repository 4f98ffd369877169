"""ReplicaTracker: the state of a replica from its cluster's and its own report."""

from typing import Any

import pytest

from chairlift.cluster.base import ClusterReplica, PlacementState
from chairlift.core.load_report import ReplicaState
from chairlift.fleet.replica_tracker import ReplicaTracker
from chairlift.router.health.replica_load import ReplicaLoad, parse_load

PENDING, RUNNING, STOPPING = PlacementState.PENDING, PlacementState.RUNNING, PlacementState.STOPPING
URL = "http://a"


def replica(state: PlacementState = RUNNING, age: float = 1.0) -> ClusterReplica:
    return ClusterReplica(
        replica_id="a", url=URL, state=state, age_seconds=age, version="v", replica_type="t", reason="why"
    )


def load(state: str = "ready", **numbers: Any) -> dict[str, ReplicaLoad]:
    return {URL: parse_load({"state": state, **numbers}, 0.0)}


@pytest.mark.parametrize(("placement", "report", "is_draining", "state"), [
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
    tracker.update([replica()], load(), set(), 10.0)
    pool = tracker.update([replica()], {}, set(), 10.0 + silence)
    assert pool.stuck == (("a",) if is_stuck else ()) and pool.samples[0].state is ReplicaState.READY
    assert tracker.update([replica(STOPPING)], {}, set(), 10.0 + silence).stuck == ()


@pytest.mark.parametrize(("age", "is_stuck"), [(1800.0, False), (1801.0, True)])
def test_a_start_that_takes_too_long_is_stuck(age: float, is_stuck: bool) -> None:
    pool = ReplicaTracker().update([replica(age=age)], load("starting"), set(), 0.0)
    assert pool.stuck == (("a",) if is_stuck else ())


def test_an_id_that_was_gone_is_a_new_replica() -> None:
    tracker = ReplicaTracker()
    tracker.update([replica()], load(), set(), 0.0)
    tracker.update([], {}, set(), 1.0)
    assert tracker.update([replica()], {}, set(), 2.0).samples[0].state is ReplicaState.STARTING
