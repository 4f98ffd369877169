"""Missing values of CPU, memory and GPU use: none becomes a number on its way from a report to a decision."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.autoscaler.config import AutoscalerConfig, TargetConfig, ThresholdConfig, WindowConfig
from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.fleet.replica_tracker import ReplicaTracker
from chairlift.router.health.replica_load import parse_load
from support_autoscaler import history_of, pool, ready

RATIOS = ("cpu_ratio", "memory_ratio", "gpu_ratio", "gpu_memory_ratio")
ABSENT = object()
RATIO = st.floats(0, 1)
REPORT = st.fixed_dictionaries({name: st.one_of(RATIO, st.none(), st.just(ABSENT)) for name in RATIOS})


@given(st.lists(REPORT, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_sample_has_what_the_report_says_and_nothing_else(reports: list[dict[str, Any]]) -> None:
    replicas, loads = [], {}
    for index, report in enumerate(reports):
        url, present = f"http://{index}", {name: value for name, value in report.items() if value is not ABSENT}
        replicas.append(ClusterReplica(
            replica_id=str(index), url=url, state=PlacementState.RUNNING, age_seconds=1.0, version="", replica_type="",
        ))  # fmt: skip
        loads[url] = parse_load(json.loads(json.dumps({"state": "ready", **present})), 0.0)
        assert loads[url].missing >= {name for name, value in report.items() if value is ABSENT}
    samples = ReplicaTracker().update(replicas, loads, frozenset(), 0.0).samples
    for sample, report in zip(samples, reports, strict=True):
        for name, value in report.items():
            assert getattr(sample, name) == (None if value is ABSENT else value)


@pytest.mark.share(1)
@given(st.lists(st.one_of(RATIO, st.none()), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("has_thresholds", [False, True])
def test_a_missing_value_decides_as_one_between_idle_and_busy(has_thresholds: bool, values: list[float | None]) -> None:
    config = AutoscalerConfig(
        max_replicas=20, interval_seconds=2.0,
        targets=TargetConfig(wait_seconds=None, concurrency_ratio=None, kv_usage_ratio=None, cpu_ratio=0.6),
        windows=WindowConfig(stable_seconds=6.0, panic_seconds=2.0, stabilisation_seconds=8.0, reversal_seconds=0.0),
        thresholds=ThresholdConfig(
            queue_high=None, queue_low=None, grow_seconds=6.0, shrink_seconds=8.0, cooldown_seconds=0.0
        ) if has_thresholds else None,
    )  # fmt: skip

    def target(missing: float | None) -> tuple[int, str]:
        ratios = [missing if value is None else value for value in values]
        replicas = [ready(str(index), cpu_ratio=ratio) for index, ratio in enumerate(ratios)]
        _, decision = history_of(config, [pool(2.0 * index, *replicas) for index in range(12)])
        return decision.target, decision.reason

    found, reason = target(None)
    assert target(0.0)[0] <= found <= target(1.0)[0]
    if all(value is None for value in values):
        assert (found, reason) == (len(values), "missing_data")
