"""The report of a soak test: the text has every finding, the JSON every measurement."""

import json
from pathlib import Path

import pytest

from soak.clients import MAX_UNEXPECTED, Tally
from soak.raw_client import Outcome, RequestResult
from soak.report import format_report, plot, write_report
from soak.verdict import Finding

from .test_verdict import CHAT, soak_result

MORE = {"seed": 7, "rate": 5.0, "capacity": 10.0, "kinds": {"chat": {"response": 3, "429 overloaded": 1}}}


def request_result(outcome: Outcome, status: int, code: str = "") -> RequestResult:
    return RequestResult(outcome, status, code, b"", 0.0, 1.0)


def test_the_text_has_every_finding() -> None:
    passed, failed = Finding("one check", True, "fine"), Finding("another", False, "3 left")
    text = format_report(soak_result(), [passed, failed], MORE)
    assert "FAILED" in text.splitlines()[0] and "FAIL  another: 3 left" in text and "ok    one check: fine" in text
    assert "seed 7" in text and "response 3, 429 overloaded 1" in text
    assert "passed" in format_report(soak_result(), [passed], MORE).splitlines()[0]


@pytest.mark.full
def test_files_are_written(tmp_path: Path) -> None:
    result = soak_result()
    text = write_report(tmp_path, result, [Finding("a", True, "b")], MORE)
    assert (tmp_path / "soak.txt").read_text(encoding="utf-8") == text
    report = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))
    assert len(report["samples"]) == len(result.samples) and len(report["idle_samples"]) == len(result.idle_samples)
    assert report["findings"] == [{"name": "a", "passed": True, "details": "b"}] and report["seed"] == 7
    assert report["samples"][0]["api"]["rss"] == result.samples[0].api.rss  # type: ignore[union-attr]


@pytest.mark.full
def test_curves_are_drawn_where_matplotlib_is_there(tmp_path: Path) -> None:
    assert plot(tmp_path / "soak.png", soak_result()) and (tmp_path / "soak.png").stat().st_size > 10_000


def test_only_unexpected_results_are_kept_and_bad_input_is_one_kind() -> None:
    tally = Tally()
    tally.add(CHAT, request_result(Outcome.RESPONSE, 200))
    assert not tally.unexpected and tally.counts == {("chat", "response"): 1}
    tally.add(CHAT, request_result(Outcome.CONNECTION_LOST, 200))
    tally.add(CHAT, request_result(Outcome.RESPONSE, 429, "overloaded"))
    tally.add(CHAT, request_result(Outcome.ERROR_EVENT, 200, "engine_dead"))
    tally.add(CHAT, request_result(Outcome.RESPONSE, 503, "starting"))
    unexpected = [result.outcome for _, result in tally.unexpected]
    assert unexpected == [Outcome.CONNECTION_LOST, Outcome.ERROR_EVENT, Outcome.RESPONSE] and tally.total == 5
    for _ in range(MAX_UNEXPECTED):
        tally.add(CHAT, request_result(Outcome.TIMED_OUT, 0))
    assert (len(tally.unexpected), tally.num_dropped) == (MAX_UNEXPECTED, 3)
