"""PoolHistory: windows, gaps, idle time, recommendations, changes and what it learns."""

from typing import Any

import pytest

from chairlift.autoscaler.config import AutoscalerConfig, ThresholdConfig
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.history import Change, PoolHistory
from support_autoscaler import READY, STARTING, pool, ready, replicas_of, silent

CONFIG = AutoscalerConfig()


def fed(*times: float, config: AutoscalerConfig = CONFIG, **load: Any) -> PoolHistory:
    """Return a history of a replica at these times."""
    history = PoolHistory(config)
    for at in times:
        history.add(pool(at, ready("a", **load)))
    return history


def window_times(history: PoolHistory, seconds: float) -> list[float]:
    return [each.at_seconds for each in history.window(seconds, history.capacity()).loads]


def decision(at: float, target: int = 1, current: int = 1, **values: Any) -> Decision:
    return Decision(at_seconds=at, target=target, current=current, **values)


def test_a_window_has_the_samples_of_its_time_and_two_at_least() -> None:
    history = fed(*range(0, 100, 10))
    assert window_times(history, 25) == [70, 80, 90]
    assert window_times(history, 5) == [80, 90]
    assert window_times(history, 1000)[0] >= 90 - 60 - 2 * CONFIG.interval_seconds, "older ones are dropped"


def test_a_sample_that_is_not_newer_is_ignored() -> None:
    history = fed(0, 2, 4, 4, 3)
    assert window_times(history, 60) == [0, 2, 4]
    assert history.newest is not None
    assert history.newest.at_seconds == 4


@pytest.mark.parametrize("at", [100.0, -100.0])
def test_a_gap_or_a_clock_that_goes_back_forgets_the_loads(at: float) -> None:
    history = fed(0, 2, 4)
    history.record(decision(4, recommended=3.0))
    history.add(pool(at, ready("a")))
    assert window_times(history, 60) == [at]
    assert history.highest_recommended(at) is None
    assert history.idle_since == at


def test_idle_time_begins_with_the_first_idle_sample_and_unknown_ones_do_not_end_it() -> None:
    history = fed(0, 2)
    assert history.idle_since == 0
    history.add(pool(4, silent("a")))
    assert (history.idle_since, history.is_idle_now) == (0, False)
    history.add(pool(6, ready("a", running_requests=1.0)))
    assert history.idle_since is None
    history.add(pool(8, ready("a")))
    assert (history.idle_since, history.is_idle_now) == (8, True)


def test_the_highest_recommendation_needs_all_of_the_stabilisation_time() -> None:
    history = PoolHistory(CONFIG)
    for at in range(0, 300, 2):
        history.record(decision(at, recommended=5.0 if at == 10 else 2.0))
        assert history.highest_recommended(at) is None or at >= 297
    history.record(decision(305, recommended=1.0))
    assert history.highest_recommended(305) == 5.0
    history.record(decision(312, recommended=1.0))
    assert history.highest_recommended(312) == 2.0
    assert history.highest_recommended(343) is None, "the newest is too old"
    history.record(decision(400, recommended=1.0))
    assert history.highest_recommended(400) is None, "nothing is known of the time before"


def test_a_decision_without_data_recommends_nothing() -> None:
    history = PoolHistory(CONFIG)
    for at in range(0, 320, 10):
        history.record(decision(at, recommended=None if at == 300 else 2.0))
    assert history.highest_recommended(310) == 2.0


def test_changes_are_those_carried_out_and_each_counts_once() -> None:
    history = PoolHistory(CONFIG)
    history.record(decision(0, 2, 1))
    history.record(decision(2, 2, 1))  # the pool does not show it yet
    history.record(decision(4, 2, 2))
    history.record(decision(6, 3, 2), is_applied=False)
    history.record(decision(8, 1, 2))
    history.record(decision(60, 1, 2))
    assert list(history.changes) == [Change(0, 1, 2), Change(8, 2, 1), Change(60, 2, 1)]
    assert [each.is_growth for each in history.changes] == [True, False, False]


def test_a_panic_is_remembered_until_its_end() -> None:
    history = PoolHistory(CONFIG)
    history.record(decision(0, is_panic=True, panic_until=60.0))
    history.record(decision(2))
    assert history.panic_until == 60.0


def test_capacity_is_what_was_reported_last() -> None:
    history = fed(0, 2, max_running_requests=32.0, prefill_tokens_per_second=500.0)
    history.add(pool(4))
    capacity = history.capacity()
    assert (capacity.max_running_requests, capacity.prefill_tokens_per_second) == (32.0, 500.0)
    assert capacity.service_seconds is None


def test_the_cold_start_is_learnt_and_is_the_least_time_of_a_drain() -> None:
    history = PoolHistory(CONFIG)
    assert (history.capacity().cold_start_seconds, history.capacity().drain_seconds) == (60.0, 60.0)
    history.add(pool(0, silent("a", STARTING)))
    history.add(pool(2, silent("a", READY, age_seconds=9.0)))
    assert (history.capacity().cold_start_seconds, history.capacity().drain_seconds) == (9.0, 30.0)


def test_the_time_of_a_request_is_learnt_while_the_pool_is_calm_and_kept_in_a_burst() -> None:
    history = PoolHistory(CONFIG)
    for at in range(0, 40, 2):
        history.add(pool(at, *replicas_of(2, running_requests=5.0), requests_per_second=2.0))
    assert history.capacity().service_seconds == 5.0
    for at in range(40, 120, 2):
        history.add(pool(at, *replicas_of(2, running_requests=10.0, waiting_requests=at), requests_per_second=9.0))
    assert history.capacity().service_seconds == 5.0


def test_loads_of_a_time_are_known_only_if_samples_go_back_so_far() -> None:
    config = AutoscalerConfig(thresholds=ThresholdConfig(shrink_seconds=100.0), interval_seconds=10.0)
    history = fed(*range(0, 200, 10), config=config)
    assert [each.at_seconds for each in history.loads_since(160)] == [160, 170, 180, 190]
    assert history.loads_since(-50) == ()
    assert PoolHistory(config).loads_since(0) == ()
