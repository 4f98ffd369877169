"""ConcurrencyRule: demand against the target, a queue without bound, and missing data."""

import pytest

from chairlift.autoscaler.rules.concurrency import ConcurrencyRule
from support_autoscaler import STARTING, pool, ready, replicas_of, silent, window_of

BY_RATIO = ConcurrencyRule(ratio=0.5, concurrency=None, wait_seconds=1.0)
BY_NUMBER = ConcurrencyRule(ratio=0.5, concurrency=4.0, wait_seconds=1.0)


def test_the_need_is_demand_by_target() -> None:
    window = window_of(pool(0, *replicas_of(3, running_requests=8.0)))
    assert BY_RATIO.evaluate(window).desired == 24 / 5
    assert BY_NUMBER.evaluate(window).desired == 24 / 4


@pytest.mark.parametrize("num_waiting", [10.0, 100.0, 1000.0])
def test_the_need_grows_with_a_queue_that_full_replicas_do_not_show(num_waiting: float) -> None:
    window = window_of(pool(0, ready("a", running_requests=10.0, waiting_requests=num_waiting)))
    assert BY_RATIO.evaluate(window).desired == pytest.approx((10 + num_waiting) / 5)


def test_a_backlog_may_use_replicas_up_to_their_limit() -> None:
    full = pool(0, ready("a", running_requests=10.0, waiting_requests=700.0), requests_per_second=40.0)
    result = BY_RATIO.evaluate(window_of(full, service_seconds=2.0, drain_seconds=60.0))
    assert result.desired == 80 / 5  # more than (80 + 22) / 10
    longer = pool(0, ready("a", running_requests=10.0, waiting_requests=3040.0), requests_per_second=40.0)
    assert BY_RATIO.evaluate(window_of(longer, service_seconds=2.0)).desired == (80 + 100) / 10


def test_data_of_no_replica_is_missing_and_zero_is_zero() -> None:
    assert BY_RATIO.evaluate(window_of(pool(0, silent("a")))).desired is None
    assert BY_RATIO.evaluate(window_of(pool(0, silent("a", STARTING)))).desired is None
    assert BY_RATIO.evaluate(window_of(pool(0, ready("a")))).desired == 0.0
    assert BY_RATIO.evaluate(window_of(pool(0, ready("a")), max_running_requests=None)).desired is None
    assert BY_NUMBER.evaluate(window_of(pool(0, ready("a")), max_running_requests=None)).desired == 0.0


def test_held_requests_need_replicas_before_there_is_one() -> None:
    assert BY_RATIO.evaluate(window_of(pool(0, held_requests=12.0))).desired == pytest.approx(12 / 5)
