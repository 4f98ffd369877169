"""Rides: times count from a request's arrival, failed requests count as nothing but failed."""

import pytest

from chairlift.bench.offline.request_records import RequestRecord, summarize_requests
from chairlift.bench.workload.workload import WorkloadRequest


def item(at: float = 0.0, prompt: int = 10, output: int = 3) -> WorkloadRequest:
    return WorkloadRequest(at=at, prompt_token_ids=(1,) * prompt, output_tokens=output)


FIRST = RequestRecord(item(), [1.0, 1.5, 2.5], 3, cached_tokens=4, ended=2.5)
LATE = RequestRecord(item(at=2.0, prompt=6), [2.2, 2.4], 3, ended=2.6)
FAILED = RequestRecord(item(), [0.1], 1, ended=9.0, error="timeout")
SHORT = RequestRecord(item(), [0.1], 2, ended=9.0)
OPEN = RequestRecord(item(), [], 0)


def test_throughput_is_of_whole_requests_over_the_whole_time() -> None:
    told = summarize_requests([FIRST, LATE], 4.0)
    assert told["seconds"] == 4.0
    assert told["output_tokens_per_second"] == 6 / 4
    assert told["total_tokens_per_second"] == (6 + 16) / 4
    assert told["requests_per_second"] == 2 / 4
    assert told["tokens"] == {"prompt": 16, "output": 6, "cached": 4}


def test_latency_and_first_token_count_from_the_arrival_and_gaps_between_stamps() -> None:
    told = summarize_requests([FIRST, LATE], 4.0)
    assert told["latency_seconds"]["mean"] == pytest.approx((2.5 + 0.6) / 2)
    assert told["ttft_seconds"]["mean"] == pytest.approx((1.0 + 0.2) / 2)
    assert told["samples"]["itl_seconds"] == pytest.approx([0.2, 0.5, 1.0])
    assert told["samples"]["latency_seconds"] == pytest.approx([0.6, 2.5])


def test_what_failed_is_counted_by_its_reason_and_adds_nothing_else() -> None:
    told, alone = summarize_requests([FIRST, FAILED, SHORT, OPEN], 4.0), summarize_requests([FIRST], 4.0)
    assert told["requests"] == {
        "total": 4, "completed": 1, "failed": 3, "errors": {"timeout": 1, "incomplete": 2},
    }  # fmt: skip
    assert {**told, "requests": 0} == {**alone, "requests": 0}


def test_a_run_in_which_all_failed_still_adds_up() -> None:
    told = summarize_requests([FAILED], 1.0)
    assert told["output_tokens_per_second"] == 0.0 and told["latency_seconds"]["p99"] is None
