"""ExpectedWaitRule: in proportion below the target, flow plus backlog above it."""

import pytest

from chairlift.autoscaler.load_and_demand_window import LoadWindow
from chairlift.autoscaler.rules.expected_wait import ExpectedWaitRule
from support_autoscaler import STARTING, pool, replicas_of, silent, window_of

RULE = ExpectedWaitRule(1.0)


def waits(*seconds: float, count: int = 4) -> LoadWindow:
    """Return a window whose samples, two seconds apart, have these waits."""
    return window_of(
        *(pool(2 * index, *replicas_of(count, expected_wait_seconds=each)) for index, each in enumerate(seconds))
    )


def test_below_the_target_the_need_is_in_proportion() -> None:
    assert RULE.evaluate(waits(0.5, 0.25)).desired == 1.0
    assert RULE.evaluate(waits(0.0)).desired == 0.0


def test_a_wait_that_grows_says_how_much_more_arrives_than_is_served() -> None:
    # 4 replicas; the work grows by 8 replica seconds in each second, and 24 x 4 of it wait
    assert RULE.evaluate(waits(18.0, 22.0, 26.0)).desired == pytest.approx(4 + 8 + 26 * 4 / 60)


def test_a_short_peak_or_a_wait_that_shrinks_in_time_needs_no_more() -> None:
    assert RULE.evaluate(waits(0.5, 3.0)).desired == 4.0
    assert RULE.evaluate(waits(9.0, 7.0, 5.0)).desired == 4.0


def test_a_wait_that_stays_above_the_target_needs_a_fifth_more() -> None:
    assert RULE.evaluate(waits(3.0, 3.0, 3.0)).desired == pytest.approx(4 * 1.2)


def test_held_prompts_count_as_work() -> None:
    samples = [pool(at, *replicas_of(2), held_tokens=8000.0) for at in (0, 2)]
    result = RULE.evaluate(window_of(*samples, prefill_tokens_per_second=1000.0))
    assert result.numbers["wait_s"] == 4.0
    assert result.desired == pytest.approx(2.4)


def test_missing_waits() -> None:
    assert RULE.evaluate(window_of(pool(0, silent("a")))).desired is None
    assert RULE.evaluate(window_of(pool(0, silent("a", STARTING)))).desired is None
    half = [pool(at, *replicas_of(2, expected_wait_seconds=0.0), silent("a"), silent("b")) for at in (0, 2)]
    assert RULE.evaluate(window_of(*half)).desired == 2.0, "those without data count as busy"
