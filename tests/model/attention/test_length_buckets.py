"""split_into_buckets: each row once, little padding, bounded size."""

import random

from chairlift.model.attention.length_buckets import PADDING_SHARE, split_into_buckets
from support_shares import for_each


def test_equal_rows_are_one_bucket_in_their_own_order() -> None:
    assert split_into_buckets([7] * 5, 10**6, 1) == [(0, 1, 2, 3, 4)]
    assert split_into_buckets([6, 8, 7], 10**6, 1) == [(0, 1, 2)]


def test_rows_of_other_lengths_are_other_buckets() -> None:
    assert split_into_buckets([10, 1000, 12, 990], 10**6, 1) == [(1, 3), (2, 0)]


def test_padding_that_costs_less_than_an_operation_is_taken() -> None:
    assert split_into_buckets([10, 1000, 12, 990], 10**6, 3000) == [(0, 1, 2, 3)]


def test_a_row_without_tokens_is_in_no_bucket() -> None:
    assert split_into_buckets([0, 5, 0], 100, 10) == [(1,)]
    assert split_into_buckets([0, 0], 100, 10) == []


@for_each("seed", range(30))
def test_buckets_hold_every_row_once_within_their_bounds(seed: int) -> None:
    dice = random.Random(seed)
    spans = [dice.choice((0, dice.randrange(1, 40), dice.randrange(1, 3000))) for _ in range(dice.randrange(1, 60))]
    most, operation = dice.choice((1, 500, 5000, 10**6)), dice.choice((0, 50, 2000))
    buckets = split_into_buckets(spans, most, operation)
    assert sorted(row for rows in buckets for row in rows) == [row for row, span in enumerate(spans) if span]
    for rows in buckets:
        longest = max(spans[row] for row in rows)
        assert len(rows) == 1 or len(rows) * longest <= most
        assert sum(longest - spans[row] for row in rows) <= max(operation, PADDING_SHARE * longest * len(rows))
