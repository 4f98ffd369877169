"""AutoscalerMetrics: the values of the autoscaler are on the page, and counters only grow."""

import pytest

from chairlift.autoscaler.status import AutoscalerValues
from chairlift.fleet.autoscaler_metrics import AutoscalerMetrics
from chairlift.observability.metrics import AUTOSCALER_METRICS, Metrics


def values(decisions: int, **desired: float) -> AutoscalerValues:
    return AutoscalerValues(
        target=3, current=2, replicas={"starting": 1, "ready": 2}, desired=desired,
        decisions={"up": decisions, "down": 0}, failures={"sample": 1}, is_panic=True, is_data_missing=True,
        held_requests=4.0, cost_per_hour=2.5, cold_start_seconds=9.0,
    )  # fmt: skip


def test_every_metric_of_the_autoscaler_is_written() -> None:
    metrics = Metrics(AUTOSCALER_METRICS)
    writer = AutoscalerMetrics(metrics)
    writer.update(values(5, expected_wait=2.5))
    page = metrics.render().decode().splitlines()
    for line in (
        "target_replicas 3.0", "current_replicas 2.0", 'replicas{state="starting"} 1.0', 'replicas{state="ready"} 2.0',
        'desired_replicas{rule="expected_wait"} 2.5', 'decisions_total{direction="up"} 5.0', "panic 1.0",
        'failures_total{action="sample"} 1.0', "data_missing 1.0", "held_requests 4.0", "cost_per_hour 2.5",
        "cold_start_seconds 9.0",
    ):  # fmt: skip
        assert f"chairlift_autoscaler_{line}" in page, line
    assert {name for name in AUTOSCALER_METRICS if not any(f"_{name}" in line for line in page)} == set()


def test_counters_grow_by_what_is_new_and_a_rule_without_data_has_no_number() -> None:
    metrics = Metrics(AUTOSCALER_METRICS)
    writer = AutoscalerMetrics(metrics)
    writer.update(values(5, expected_wait=2.5))
    writer.update(values(7))
    page = metrics.render().decode().splitlines()
    assert 'chairlift_autoscaler_decisions_total{direction="up"} 7.0' in page
    (line,) = [line for line in page if "desired_replicas{" in line]
    assert float(line.split()[-1]) != pytest.approx(2.5) and line.endswith("NaN")
