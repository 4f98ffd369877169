"""summarize_phase: latencies count from due times, rates are measured over a window, and counts add up."""

import pytest

from chairlift.bench.server.http_request_record import HttpRequestRecord, Outcome
from chairlift.bench.server.phase_summary import MeasureWindow, distribution_of, summarize_phase
from chairlift.bench.server.slo import SLO
from support_scripted_server import ok_record, rejection_record
from support_shares import for_each


def test_a_response_without_a_token_has_no_ttft() -> None:
    assert not SLO({}).is_met(ok_record(0.0)) and SLO({}).is_met(ok_record(0.0, 5.0))
    counts = summarize_phase([ok_record(0.0), ok_record(0.0, 5.0)], SLO({}), 9.0)["requests"]
    assert (counts["ok"], counts["good"], counts["empty"]) == (2, 1, 1)
    assert SLO({"tpot": 0.1, "itl": 0.1}).is_met(ok_record(0.0, 5.0))


def test_rates_are_counted_behind_the_beginning() -> None:
    window = MeasureWindow.of(10.0, [])
    assert (window.begin, window.end) == (2.0, 10.0)
    assert window.rate([1.9, 2.0, 9.9, 10.0]) == 2 / 8
    whole = MeasureWindow.of(None, [ok_record(0.0, 4.0), HttpRequestRecord(due=0.0, sent=0.0)])
    assert (whole.begin, whole.end) == (0.0, 4.0)
    assert MeasureWindow.of(None, []).rate([]) is None


def test_a_spread_has_the_largest_and_leaves_out_what_is_not_known() -> None:
    assert distribution_of([3.0, None, 1.0])["max"] == 3.0 and distribution_of([3.0, None, 1.0])["mean"] == 2.0
    assert distribution_of([None]) == {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}


def test_what_a_phase_comes_to() -> None:
    records = [
        ok_record(0.0, 3.0, 4.0, 5.0), ok_record(1.0, 3.0, 9.0, sent=2.0), rejection_record(4.0, 0.02, sent=4.01),
        rejection_record(5.0, 0.04, status=503, code="draining", retry_after=None),
    ]  # fmt: skip
    found = summarize_phase(records, SLO({"e2e": 6.0}), 10.0)
    assert found["window"] == {"begin": 2.0, "end": 10.0}
    assert found["sent_per_second"] == 3 / 8 and found["completed_per_second"] == 2 / 8
    assert found["goodput_per_second"] == 1 / 8 and found["output_tokens_per_second"] == 5 / 8
    assert found["tokens"] == {"prompt": 20, "output": 5, "asked": 0, "free": 4}
    assert found["good_tokens_per_second"] == 3 / 8
    assert found["ttft_seconds"]["max"] == 3.0 and found["ttft_seconds"]["mean"] == 2.5
    assert found["ttft_from_sending_seconds"]["mean"] == 2.0
    assert found["tpot_seconds"]["mean"] == 3.5 and found["itl_seconds"]["max"] == 6.0
    assert found["e2e_seconds"]["max"] == 8.0
    assert found["refusal_seconds"]["max"] == pytest.approx(0.04)
    assert found["refusal_seconds"]["mean"] == pytest.approx(0.025)
    assert found["refusal_from_due_seconds"]["mean"] == pytest.approx(0.03)
    assert found["retry_after_seconds"]["mean"] == 1.0
    assert found["samples"]["ttft_seconds"] == [2.0, 3.0]
    counts = found["requests"]
    assert (counts["total"], counts["ok"], counts["good"], counts["refused"], counts["failed"]) == (4, 2, 1, 2, 0)
    assert (counts["non_terminal"], counts["server_errors"], counts["refused_without_retry_after"]) == (0, 1, 1)
    assert counts["by_status"] == {"200": 2, "429": 1, "503": 1}
    assert counts["by_code"] == {"draining": 1, "overloaded": 1}


def test_where_no_ids_came_the_servers_count_is_shared_out() -> None:
    found = summarize_phase([ok_record(0.0, 1.0, 3.0, has_ids=False, usage_tokens=8)], SLO({}), 5.0)
    assert found["output_tokens_per_second"] == 8 / 4 and found["tokens"]["output"] == 8


@for_each(("outcome", "status", "non_terminal"), [
    (Outcome.CONNECTION_LOST, 200, 1), (Outcome.TIMEOUT, 0, 1), (Outcome.UNREACHABLE, 0, 1),
    (Outcome.INVALID_RESPONSE, 0, 1),
    (Outcome.UNFINISHED, 200, 1), (Outcome.ERROR_EVENT, 200, 0), (Outcome.BAD_STATUS, 500, 0),
])  # fmt: skip
def test_failures_with_and_without_an_end(outcome: Outcome, status: int, non_terminal: int) -> None:
    counts = summarize_phase([ok_record(0.0, outcome=outcome, status=status, why="so")], SLO({}), 1.0)["requests"]
    assert (counts["failed"], counts["non_terminal"], counts["ok"]) == (1, non_terminal, 0)
    assert counts["server_errors"] == int(status == 500) and counts["why"] == {"so": 1}
    assert counts["by_outcome"] == {outcome.value: 1}


def test_what_was_interrupted_is_no_failure() -> None:
    counts = summarize_phase([HttpRequestRecord(due=0.0, sent=0.0), ok_record(0.0, 1.0)], SLO({}), 2.0)["requests"]
    assert (counts["total"], counts["interrupted"], counts["failed"], counts["non_terminal"]) == (2, 1, 0, 0)


def test_responses_of_another_length_are_counted() -> None:
    records = [
        ok_record(0.0, 1.0, requested_tokens=2),
        ok_record(0.0, 1.0),
        ok_record(0.0, 1.0, usage_tokens=2, requested_tokens=2),
    ]
    counts = summarize_phase(records, SLO({}), 2.0)["requests"]
    assert (counts["other_lengths"], counts["miscounted"]) == (1, 1)
