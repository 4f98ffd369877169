"""Headroom: the load may rise by the margin before a shrunk pool grows again."""

import pytest

from chairlift.autoscaler.limits.headroom import need_that_fits_half, num_with_headroom
from support_shares import for_each


@for_each(
    ("need", "margin", "num"),
    [(0.0, 0.2, 0), (0.5, 0.2, 1), (0.91, 0.2, 1), (0.92, 0.2, 2), (11.0, 0.2, 12), (11.1, 0.2, 13), (11.0, 0.0, 10)],
)
def test_the_fewest_replicas_with_margin(need: float, margin: float, num: int) -> None:
    assert num_with_headroom(need, margin=margin, tolerance=0.1) == num


@pytest.mark.parametrize(("margin", "tolerance"), [(0.2, 0.1), (0.0, 0.1), (1.0, 0.0)])
def test_the_need_that_half_of_the_replicas_hold(margin: float, tolerance: float) -> None:
    share = need_that_fits_half(margin=margin, tolerance=tolerance)
    for num in (2, 4, 64):
        assert num_with_headroom(num * share, margin=margin, tolerance=tolerance) == num // 2
        assert num_with_headroom(num * share * 1.01, margin=margin, tolerance=tolerance) == num // 2 + 1
