"""pool_load: sums over ready replicas, what counts as missing, and when a pool is idle."""

import math

import pytest

from chairlift.autoscaler.pool_load import Quantity, pool_load
from support_autoscaler import DRAINING, STARTING, pool, ready, silent
from support_shares import for_each


def test_sums_are_over_ready_replicas_only() -> None:
    load = pool_load(
        pool(5.0, ready("a", running_requests=3.0), ready("b", running_requests=4.0), silent("c", STARTING),
             silent("d", DRAINING, running_requests=50.0))
    )  # fmt: skip
    assert (load.at_seconds, load.num_ready, load.num_starting) == (5.0, 2, 1)
    assert load.quantities["running_requests"] == Quantity(7.0, 0)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_not_a_number_is_missing(value: float | None) -> None:
    assert pool_load(pool(0, ready("a", cpu_ratio=value))).quantities["cpu_ratio"] is None
    partial = pool_load(pool(0, ready("a", cpu_ratio=value), ready("b", cpu_ratio=0.0)))
    assert partial.quantities["cpu_ratio"] == Quantity(0.0, 1)
    assert pool_load(pool(0, held_tokens=value)).pool_values["held_tokens"] is None


def test_without_a_ready_replica_sums_are_zero_and_not_missing() -> None:
    assert pool_load(pool(0, silent("a", STARTING))).quantities["running_requests"] == Quantity(0.0, 0)


@pytest.mark.parametrize(
    ("load", "seconds"),
    [
        ({"expected_wait_seconds": 2.0, "waiting_tokens": 9000.0, "prefill_tokens_per_second": 10.0}, 2.0),
        ({"expected_wait_seconds": None, "waiting_tokens": 9000.0, "prefill_tokens_per_second": 3000.0}, 3.0),
        ({"expected_wait_seconds": None, "waiting_tokens": 0.0}, 0.0),
        ({"expected_wait_seconds": None, "waiting_tokens": 9.0, "prefill_tokens_per_second": 0.0}, None),
        ({"expected_wait_seconds": None, "waiting_tokens": None}, None),
    ],
)
def test_a_wait_is_reported_or_follows_from_tokens_and_speed(load: dict[str, float], seconds: float | None) -> None:
    quantity = pool_load(pool(0, ready("a", **load))).quantities["wait_seconds"]
    assert (quantity and quantity.total) == seconds


@pytest.mark.parametrize("name", ["max_running_requests", "prefill_tokens_per_second"])
def test_zero_means_unknown_for_limits_and_speeds(name: str) -> None:
    assert pool_load(pool(0, ready("a", **{name: 0.0}))).quantities[name] is None


@for_each(
    ("load", "values", "is_idle"),
    [
        ({}, {}, True),
        ({}, {"requests_per_second": 0.0}, True),
        ({"running_requests": 1.0}, {}, False),
        ({"waiting_requests": 1.0, "running_requests": None}, {}, False),
        ({}, {"held_requests": 2.0}, False),
        ({}, {"requests_per_second": 0.1}, False),
        ({"running_requests": None}, {}, None),
        ({}, {"held_requests": None}, None),
    ],
)
def test_a_pool_is_idle_only_if_all_counts_are_known_zeros(
    load: dict[str, float | None], values: dict[str, float | None], is_idle: bool | None
) -> None:
    assert pool_load(pool(0, ready("a", **load), **values)).is_idle is is_idle
