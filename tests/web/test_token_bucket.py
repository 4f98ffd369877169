"""TokenBucket: never more than a minute's amount and its rate; debts, refunds, and the amount in use."""

import math

import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, lists, tuples

from chairlift.web.token_bucket import MINUTE, TokenBucket

STEPS = lists(tuples(floats(0, 200), floats(0, 50)), max_size=20)


@settings(max_examples=40)
@given(floats(0.01, 1e4), STEPS)
def test_a_bucket_never_gives_more_than_a_minute_and_its_rate(
    per_minute: float, steps: list[tuple[float, float]]
) -> None:
    """The bound holds for every interval, not only from the start."""
    bucket, now, size = TokenBucket(per_minute, 0.0), 0.0, max(1.0, per_minute)
    amounts: list[tuple[float, float]] = []
    for seconds, amount in steps:
        now += seconds
        if amount <= size and bucket.seconds_until(amount, now) == 0:
            bucket.take(amount, now)
            amounts.append((now, amount))
    for first in range(len(amounts)):
        for last in range(first, len(amounts)):
            total = sum(amount for _, amount in amounts[first : last + 1])
            span = amounts[last][0] - amounts[first][0]
            assert total <= (size + span * per_minute / MINUTE) * (1 + 1e-9)


@settings(max_examples=40)
@given(floats(0.01, 1e4), STEPS, floats(0, 1e5))
def test_after_the_seconds_that_are_missing_there_is_enough(
    per_minute: float, steps: list[tuple[float, float]], amount: float
) -> None:
    bucket, now = TokenBucket(per_minute, 0.0), 0.0
    for seconds, step_amount in steps:
        now += seconds
        bucket.take(step_amount, now)
    seconds = bucket.seconds_until(amount, now)
    assert 0 <= seconds < math.inf
    if seconds > 1e-3:
        assert bucket.seconds_until(amount, now + seconds * 0.99) > 0
    assert bucket.seconds_until(amount, now + seconds + 1e-3) == 0


@settings(max_examples=40)
@given(floats(1, 1e4), lists(floats(-1e4, 0), max_size=9))
def test_what_is_given_back_fills_a_bucket_up_and_no_more(per_minute: float, amounts: list[float]) -> None:
    bucket = TokenBucket(per_minute, 0.0)
    for amount in amounts:
        bucket.take(amount, 0.0)
    assert bucket.seconds_until(per_minute, 0.0) == 0
    bucket.take(per_minute, 0.0)
    assert bucket.seconds_until(1, 0.0) == pytest.approx(MINUTE / per_minute)


def test_a_bucket_is_full_after_a_minute_and_no_fuller_after_an_hour() -> None:
    bucket = TokenBucket(60, 0.0)
    for now in (3600.0, 7200.0):
        bucket.take(60, now)
        assert bucket.seconds_until(1, now) == pytest.approx(1)


def test_a_bucket_can_be_overdrawn_and_pays_it_back() -> None:
    bucket = TokenBucket(60, 0.0)
    bucket.take(90, 0.0)
    assert bucket.seconds_until(0, 0.0) == pytest.approx(30)
    assert bucket.seconds_until(1, 30.0) == pytest.approx(1)
    assert bucket.seconds_until(1, 31.0) == 0


def test_the_amount_in_use_fills_again_and_survives_a_new_size() -> None:
    bucket = TokenBucket(60, 0.0)
    bucket.take(90, 0.0)
    assert bucket.in_use(0.0) == 90
    assert bucket.in_use(30.0) == pytest.approx(60)
    bucket.resize(600, 30.0)
    assert bucket.in_use(30.0) == pytest.approx(60)
    assert bucket.in_use(36.0) == 0
