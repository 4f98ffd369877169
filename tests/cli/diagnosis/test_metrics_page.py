"""MetricsPage keeps labels; increases and quantiles are those between two pages, or since the start."""

import pytest

from chairlift.cli.diagnosis.metrics_page import MetricsPage, increase, quantile

PAGE = """# TYPE chairlift_x_total counter
chairlift_x_total{code="a",text="with \\"quotes\\", {braces}"} 3
chairlift_x_total{code="b"} 4 # {trace_id="1"} 0.5
chairlift_plain 1.5
chairlift_unknown NaN
other_metric 9
chairlift_broken one
"""


def histogram(*counts: int) -> MetricsPage:
    lines = zip(("0.1", "1.0", "5.0", "+Inf"), counts, strict=True)
    return MetricsPage("\n".join(f'chairlift_h_bucket{{le="{bound}"}} {count}' for bound, count in lines))


def test_series_have_labels_and_unknown_values_are_left_out() -> None:
    page = MetricsPage(PAGE)
    assert [labels["code"] for labels, _ in page.values("x_total")] == ["a", "b"]
    assert (page.total("x_total"), page.total("plain"), page.total("unknown"), page.total("broken")) == (
        7.0, 1.5, None, None,
    )  # fmt: skip
    assert page.total("x_total", lambda labels: labels["code"] == "b") == 4.0


@pytest.mark.parametrize(("before", "after", "grown"), [(3, 5, 2), (5, 3, 3), (None, 4, 4), (4, 4, 0)])
def test_a_counter_that_began_anew_counts_from_zero(before: int | None, after: int, grown: int) -> None:
    pages = [MetricsPage("" if each is None else f"chairlift_x_total {each}\n") for each in (before, after)]
    assert increase(pages[0], pages[1], "x_total") == grown


def test_a_quantile_is_of_what_came_between_two_pages() -> None:
    before, after = histogram(100, 100, 100, 100), histogram(100, 101, 110, 110)
    assert quantile(before, after, "h", 0.95) == (5.0, 10)
    assert quantile(None, after, "h", 0.5) == (0.1, 110)
    assert quantile(before, before, "h", 0.95) is None and quantile(None, MetricsPage(""), "h", 0.95) is None


def test_above_the_last_bound_and_after_a_restart() -> None:
    assert quantile(None, histogram(0, 0, 0, 2), "h", 0.95) == (5.0, 2)
    assert quantile(histogram(9, 9, 9, 9), histogram(0, 1, 1, 1), "h", 0.95) == (1.0, 1)
