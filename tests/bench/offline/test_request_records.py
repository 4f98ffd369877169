"""RequestRecord: times count from a request's arrival; failed requests count only as failed."""

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
    report = summarize_requests([FIRST, LATE], 4.0)
    assert report["seconds"] == 4.0
    assert report["output_tokens_per_second"] == 6 / 4
    assert report["total_tokens_per_second"] == (6 + 16) / 4
    assert report["requests_per_second"] == 2 / 4
    assert report["tokens"] == {"prompt": 16, "output": 6, "cached": 4}


def test_latency_and_first_token_count_from_the_arrival_and_gaps_between_stamps() -> None:
    report = summarize_requests([FIRST, LATE], 4.0)
    assert report["latency_seconds"]["mean"] == pytest.approx((2.5 + 0.6) / 2)
    assert report["ttft_seconds"]["mean"] == pytest.approx((1.0 + 0.2) / 2)
    assert report["samples"]["itl_seconds"] == pytest.approx([0.2, 0.5, 1.0])
    assert report["samples"]["latency_seconds"] == pytest.approx([0.6, 2.5])


def test_what_failed_is_counted_by_its_reason_and_adds_nothing_else() -> None:
    report, alone = summarize_requests([FIRST, FAILED, SHORT, OPEN], 4.0), summarize_requests([FIRST], 4.0)
    assert report["requests"] == {
        "total": 4, "completed": 1, "failed": 3, "errors": {"timeout": 1, "incomplete": 2},
    }  # fmt: skip
    assert {**report, "requests": 0} == {**alone, "requests": 0}


def test_a_run_in_which_all_failed_still_adds_up() -> None:
    report = summarize_requests([FAILED], 1.0)
    assert report["output_tokens_per_second"] == 0.0 and report["latency_seconds"]["p99"] is None
