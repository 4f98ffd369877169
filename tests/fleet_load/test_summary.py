"""Tests for fleet_load.summary: errors, times, and the share of requests in time outside of cold starts."""

import json

import pytest

from fleet_load.open_loop_client import Phase, Response
from fleet_load.summary import by_second, dump, longest_increase, summary


def sample(at: float, target: int, ready: int) -> dict[str, float]:
    return {"at": at, "target": target, "ready": ready}


SERIES = [sample(0, 1, 1), sample(10, 3, 1), sample(14, 3, 2), sample(15, 3, 3), sample(40, 1, 1)]
PHASES = [Phase(seconds=10, rate=1), Phase(seconds=30, rate=8), Phase(seconds=10, rate=1)]


@pytest.mark.parametrize(
    ("series", "seconds"),
    [
        pytest.param([sample(0, 1, 1), sample(9, 1, 1)], 0, id="no rise"),
        pytest.param(SERIES, 5, id="all of a rise must be ready"),
        pytest.param([sample(0, 1, 1), sample(1, 2, 1), sample(9, 1, 1)], 8, id="a rise that is taken back ends then"),
        pytest.param([*SERIES, sample(50, 2, 1), sample(57, 2, 2)], 7, id="the longest of two"),
        pytest.param([sample(0, 1, 1), sample(1, 2, 1), sample(9, 2, 1)], 0, id="one that is not over has no length"),
    ],
)
def test_longest_increase(series: list[dict[str, float]], seconds: float) -> None:
    assert longest_increase(series) == seconds


def test_late_first_tokens_count_outside_of_two_cold_starts_after_a_rise() -> None:
    late_in_cold_start = Response(sent_at=19.9, first_token_seconds=3.0, seconds=4.0)
    late = Response(sent_at=20.0, first_token_seconds=3.0, seconds=4.0)
    good = [Response(sent_at=at, first_token_seconds=0.5, seconds=1.0) for at in (1.0, 30.0, 41.0)]
    figures = summary([late_in_cold_start, late, *good], SERIES, PHASES, 1.0, 0.5)
    assert figures["cold_start_seconds"] == 5
    assert figures["within_slo"] == 0.6
    assert figures["within_slo_outside_cold_starts"] == 0.75


def test_a_failed_request_is_not_in_time_and_has_no_part_in_the_times() -> None:
    failed = Response(sent_at=1.0, first_token_seconds=0.1, seconds=9.0, error="cut")
    good = Response(sent_at=2.0, first_token_seconds=0.2, seconds=1.0)
    figures = summary([failed, good], SERIES, PHASES, 1.0, 0.5)
    assert figures["failed"] == 1
    assert figures["errors"] == {"cut": 1}
    assert figures["within_slo"] == figures["availability"] == 0.5
    assert figures["mean_seconds"] == figures["p99_seconds"] == 1.0
    assert figures["requests_per_second"] == 0.04


def test_figures_of_no_response_are_missing() -> None:
    figures = summary([], SERIES, PHASES, 1.0, 0.5)
    assert figures["mean_seconds"] is figures["within_slo"] is figures["ttft_p50_seconds"] is None


def test_requests_by_second() -> None:
    responses = [
        Response(sent_at=1.9, first_token_seconds=0.4), Response(sent_at=1.0, first_token_seconds=0.2),
        Response(sent_at=3.5, error="cut"),
    ]  # fmt: skip
    assert by_second(responses) == [
        {"at": 1, "sent": 2, "failed": 0, "ttft_p50": 0.3, "ttft_max": 0.4},
        {"at": 3, "sent": 1, "failed": 1, "ttft_p50": None, "ttft_max": None},
    ]


def test_a_dumped_result_is_json_with_a_line_for_each_row() -> None:
    result = {"kind": "x", "kills": [], "series": [{"at": 1}, {"at": 2}], "summary": {"failed": 0}}
    assert json.loads(dump(result)) == result
    assert len(dump(result).splitlines()) == 9
