"""RetryBudget: retries keep to a share of the active requests; a few are always allowed, required ones, too."""

from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.attempts.retry_budget import RetryBudget, RetryBudgetConfig


def budget(num_active: int, **config: Any) -> RetryBudget:
    made = RetryBudget(RetryBudgetConfig(**{"min_per_second": 0, **config}))
    for _ in range(num_active):
        made.start_request()
    return made


@pytest.mark.parametrize(("num_active", "allowed"), [(0, 3), (15, 3), (16, 4), (100, 20), (1000, 200)])
def test_a_fifth_of_the_active_requests_may_be_retries_and_always_three(num_active: int, allowed: int) -> None:
    made = budget(num_active)
    results = [made.acquire_retry(0.0) for _ in range(allowed + 5)]
    assert results == [True] * allowed + [False] * 5
    assert (made.active_retries, made.num_rejected) == (allowed, 5)
    made.release_retry()
    assert made.acquire_retry(0.0)


def test_a_required_retry_is_counted_but_never_refused() -> None:
    made = budget(0)
    assert all(made.acquire_retry(0.0, is_required=True) for _ in range(50))
    assert made.active_retries == 50
    assert not made.acquire_retry(0.0), "the others wait for these"


def test_some_retries_a_second_are_always_allowed() -> None:
    made = budget(0, min_concurrent=0, min_per_second=10)
    assert [made.acquire_retry(5.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert made.acquire_retry(5.11)
    assert not made.acquire_retry(5.11)
    assert [made.acquire_retry(60.0) for _ in range(12)] == [True] * 10 + [False] * 2, "no more are saved up"


def test_ended_requests_do_not_count() -> None:
    made = budget(100, min_concurrent=0)
    for _ in range(95):
        made.end_request()
    assert [made.acquire_retry(0.0) for _ in range(2)] == [True, False]


def test_giving_back_more_than_was_taken_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="without acquire_retry"):
        budget(0).release_retry()
    with pytest.raises(AssertionError, match="without start_request"):
        budget(0).end_request()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"share": 1.5}, "share must be between 0 and 1, got 1.5"),
        ({"share": float("nan")}, "share must be"),
        ({"min_concurrent": -1}, "minimum must be 0 or more, got -1"),
        ({"min_per_second": -1}, "per second must be 0 or more, got -1"),
        ({"min_per_second": float("inf")}, "per second must be"),
    ],
)
def test_a_config_out_of_range_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RetryBudgetConfig(**config)
