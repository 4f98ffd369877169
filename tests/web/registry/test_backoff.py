"""backoff.py: growth, bounds, jitter, seed."""

import random

import pytest

from chairlift.web.registry.backoff import Backoff


def test_delays_double_up_to_the_maximum_with_jitter_of_a_half() -> None:
    backoff = Backoff(random.Random(1), first_seconds=0.2, max_seconds=5.0)
    for whole in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        assert whole / 2 <= backoff.next_delay() <= whole
    backoff.reset()
    assert backoff.next_delay() <= 0.2


def test_one_seed_gives_the_same_delays_and_two_seeds_do_not() -> None:
    def delays(seed: int) -> list[float]:
        backoff = Backoff(random.Random(seed))
        return [backoff.next_delay() for _ in range(5)]

    assert delays(1) == delays(1) != delays(2)


def test_bounds_that_exclude_each_other_are_the_callers_bug() -> None:
    with pytest.raises(AssertionError):
        Backoff(random.Random(1), first_seconds=2, max_seconds=1)
