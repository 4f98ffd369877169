"""LatencyRule: the quantile against its SLO, for the pool that served it."""

import pytest

from chairlift.autoscaler.rules.latency import LatencyRule
from support_autoscaler import pool, replicas_of, silent, window_of

RULE = LatencyRule("ttft_seconds", 0.5, min_factor=0.45)


@pytest.mark.parametrize(("seconds", "need"), [(0.5, 4.0), (0.4, 3.2), (0.1, 1.8), (0.75, 6.0), (50.0, 8.0)])
def test_the_need_follows_the_latency_between_less_than_half_and_twice_the_pool(seconds: float, need: float) -> None:
    assert RULE.evaluate(window_of(pool(0, *replicas_of(4), ttft_seconds=seconds))).desired == pytest.approx(need)


def test_a_latency_from_before_a_growth_is_not_multiplied_again() -> None:
    window = window_of(
        pool(0, *replicas_of(2), ttft_seconds=1.0), pool(2, *replicas_of(4), ttft_seconds=1.0),
    )  # fmt: skip
    assert RULE.evaluate(window).desired == 4.0


def test_no_latency_of_an_idle_pool_is_no_need_and_of_another_one_it_is_missing() -> None:
    assert RULE.evaluate(window_of(pool(0, *replicas_of(4)))).desired == 0.0
    assert RULE.evaluate(window_of(pool(0, *replicas_of(4, running_requests=1.0)))).desired is None
    assert RULE.evaluate(window_of(pool(0, silent("a")))).desired is None
    assert RULE.evaluate(window_of(pool(0, *replicas_of(4), held_requests=None))).desired == 0.0, "of an unknown router"
