"""LatencyWindow: quantiles and rates of the last minute."""

import pytest

from chairlift.router.latency_window import MAX_VALUES, LatencyWindow


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.1, 1.0), (0.5, 5.0), (0.51, 6.0), (1.0, 10.0)])
def test_a_quantile_is_one_of_the_values(share: float, expected: float) -> None:
    window = LatencyWindow()
    for value in (3, 1, 2, 10, 9, 8, 7, 6, 5, 4):
        window.add(float(value), 100.0)
    assert window.quantile(share, 101.0) == expected


def test_values_of_more_than_a_minute_ago_do_not_count() -> None:
    window = LatencyWindow()
    assert window.quantile(0.5, 0.0) is None
    window.add(9.0, 0.0)
    window.add(1.0, 30.0)
    assert window.quantile(1.0, 59.0) == 9.0
    assert window.quantile(1.0, 60.0) == 1.0
    assert window.quantile(1.0, 90.0) is None


def test_only_the_newest_values_of_a_full_window_count() -> None:
    window = LatencyWindow()
    for number in range(MAX_VALUES + 1):
        window.add(float(number), 0.0)
    assert window.quantile(0.0, 1.0) == 1.0
