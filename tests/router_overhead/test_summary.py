"""The summary has medians and spread, compares rounds of one load only, and names what was left out."""

import pytest

from router_overhead.stream_load import StreamResult
from router_overhead.summary import DIRECT, ProxyRounds, added_ttft, rotated, spread, table


def result(chunks: float, share: float | None = None, ttfts: tuple[float, ...] = ()) -> StreamResult:
    return StreamResult(1.0, chunks, share, 0.3, ttfts)


def test_chunks_are_counted_by_the_time_that_the_proxy_has_used() -> None:
    assert result(1000, 0.25).chunks_per_core_second == 4000
    assert result(1000).chunks_per_core_second is None
    assert result(1000, 0.0).chunks_per_core_second is None


def test_a_spread_has_median_minimum_and_maximum_of_what_is_known() -> None:
    assert spread([3.0, None, 1.0, 8.0]) == {"median": 3.0, "min": 1.0, "max": 8.0}
    assert spread([None]) is None


def test_the_added_time_is_the_difference_of_percentiles_in_each_round() -> None:
    first = (result(9, ttfts=(0.3, 0.1, 0.2)), result(9, ttfts=(0.05, 0.01, 0.09)))
    pairs = [first, (result(9), result(9, ttfts=(1.0,)))]
    assert [*added_ttft(pairs, 50)] == [pytest.approx(0.15), None]


def test_the_table_has_a_line_for_each_proxy_and_names_the_others() -> None:
    router = ProxyRounds("1.2", [result(900, 0.5), result(1100, 0.5)], load=500.0, rss_bytes=123_000_000)
    router.paced.append((result(500, 0.2, (0.004,)), result(500, None, (0.001,))))
    lines = [*table({DIRECT: ProxyRounds("", [result(5000)]), "router": router}, {"nginx": "it is not on PATH"})]
    assert lines[2].startswith("| no proxy | 5,000 (5,000 to 5,000) | - | -, 30% | - |")
    assert lines[3] == (
        "| router 1.2 | 1,000 (900 to 1,100) | 2,000 (1,800 to 2,200) | 50%, 30% | 500 | 3.00 (3.00 to 3.00) "
        "| 3.00 (3.00 to 3.00) | 123 |"
    )
    assert lines[-1] == "left out: nginx, because it is not on PATH"


def test_rounds_in_which_nothing_used_its_core_are_named() -> None:
    rounds = {"a": ProxyRounds("", [result(9, 0.95), result(9, 0.4)]), "b": ProxyRounds("", [result(9, 0.95)])}
    notes = [line for line in table(rounds, {}) if not line.startswith("|")]
    assert [note.partition(" neither")[0] for note in notes] == ["a: in 1 of 2 rounds at saturation"]
    assert "least: 40%" in notes[0]


def test_each_round_begins_with_the_next_proxy() -> None:
    assert [rotated("abc", at) for at in (0, 1, 5)] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert rotated([], 3) == []
