"""Server reports: strict JSON, a printed table, and a verdict for scripts."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.server.api_requests import RequestFormat
from chairlift.bench.server.benchmark_plan import BenchmarkPlan
from chairlift.bench.server.http_request_record import HttpRequestRecord, Outcome
from chairlift.bench.server.overload import judge
from chairlift.bench.server.phase_summary import summarize_phase
from chairlift.bench.server.server_benchmark import ServerBenchmark
from chairlift.bench.server.server_report import assembled, is_successful, table
from chairlift.bench.server.slo import SLO
from support_scripted_server import ok_record, rejection_record

LAG = {"mean": 0.001, "p50": 0.001, "p90": 0.001, "p99": 0.001, "max": 0.002}


def phase(name: str, *records: HttpRequestRecord, **fields: Any) -> dict[str, Any]:
    generator = {"send_lag_seconds": LAG, "loop_lag_seconds": LAG, "cpu_share": 0.1}
    given = {"recovery_seconds": 0.25, "server_memory_bytes": None, "complete": True, "generator": generator}
    return {"name": name, **summarize_phase(records, SLO({}), 10.0), **given, **fields}


def report(*phases: dict[str, Any], overload: bool = False, complete: bool = True) -> dict[str, Any]:
    found = {"probe_seconds": 0.01, "capacity_per_second": 5.0, **judge(phases)} if overload else None
    serving = SimpleNamespace(phases=list(phases), overload=lambda: found)
    return assembled(
        cast("ServerBenchmark", serving), plan=BenchmarkPlan(slo=SLO({"ttft": 0.5})), style=RequestFormat(model="m"),
        spec=WorkloadSpec(name="uniform", seed=7), url="http://h:80", complete=complete,
        source={"commit": None, "dirty": None}, words=["bench", "serve", "--url", "http://h:80"],
    )  # fmt: skip


GOOD = ok_record(2.0, 3.0, 4.0)


def test_everything_that_a_reader_needs_is_in_it() -> None:
    made = report(phase("1/s", GOOD))
    assert (made["kind"], made["schema"], made["complete"], made["seed"]) == ("chairlift bench serve", 2, True, 7)
    assert made["model"] == {"name": "m"} and made["server"] == {"url": "http://h:80"}
    assert made["asked"]["slo"] == {"ttft": 0.5} and made["asked"]["path"] == "/v1/completions"
    assert made["workload"]["name"] == "uniform" and made["command"] == "chairlift bench serve --url http://h:80"
    assert {"commit", "dirty", "versions", "hardware"} <= set(made["environment"])
    assert made["overload"] is None and is_successful(made)
    assert json.loads(json.dumps(made, allow_nan=False)) == made


@pytest.mark.parametrize("bad", [
    ok_record(1.0, outcome=Outcome.CONNECTION_LOST), ok_record(1.0, outcome=Outcome.ERROR_EVENT),
    ok_record(1.0, outcome=Outcome.BAD_STATUS, status=400), rejection_record(1.0, 0.01, status=503),
])  # fmt: skip
def test_what_is_not_well(bad: HttpRequestRecord) -> None:
    assert not is_successful(report(phase("1/s", GOOD, bad)))


def test_refusals_are_well_and_a_missed_promise_is_not() -> None:
    fine = phase("1/s", GOOD, rejection_record(3.0, 0.01))
    assert is_successful(report(fine, fine, fine, overload=True))
    late = phase("2/s", GOOD, rejection_record(3.0, 0.1))
    assert is_successful(report(fine, late)) and not is_successful(report(fine, fine, late, overload=True))


def test_the_table_has_a_line_a_phase_and_what_must_be_known() -> None:
    bad = [
        rejection_record(3.0, 0.02, retry_after=None),
        ok_record(3.0, outcome=Outcome.CONNECTION_LOST, code="cut", why="it was closed"),
        ok_record(2.0, 3.0, requested_tokens=5), ok_record(2.0, 3.0, usage_tokens=2),
        ok_record(2.0),
    ]  # fmt: skip
    slow = {"send_lag_seconds": {**LAG, "p99": 0.5}, "loop_lag_seconds": {**LAG, "max": 0.2}, "cpu_share": 0.95}
    lines = list(table(report(phase("3/s", GOOD), phase("bad", GOOD, *bad, generator=slow), complete=False)))
    assert lines[1].split()[:6] == ["3/s", "0.1", "0.1", "0", "1", "0"] and "1000.0ms" in lines[1]
    assert lines[2].startswith("bad ")
    assert lines[3:] == [
        "bad: 1 cut, 1 overloaded", "bad: rejections after 20.0ms (p50), 20.0ms (p99)",
        "bad: 1 rejections without Retry-After", "bad: 1 x it was closed",
        "bad: 1 responses had another number of tokens than the server's usage",
        "bad: 1 responses had no token and do not count as good", "bad: 1 responses did not have the requested length",
        "bad: the generator sent 500.0ms late (p99), which distorts these numbers",
        "bad: the generator stalled for 200.0ms once", "bad: the generator used 95% of a core while it sent",
        "interrupted: these are the results until then",
    ]  # fmt: skip


def test_an_overload_has_a_second_table_and_says_what_was_missed() -> None:
    first, once = phase("8 at a time", GOOD, GOOD), phase("1 x capacity", GOOD, GOOD)
    twice = phase("2 x capacity", GOOD, recovery_seconds=None, good_tokens_per_second=0.12)
    lines = list(table(report(first, once, twice, overload=True)))
    assert lines[4].startswith("shedding: capacity 5.0 requests/s, peak goodput 0 tokens/s, a probe takes 10.0ms")
    assert lines[6].split() == ["1", "x", "capacity", "100%", "-", "-", "0", "0", "0.2", "s"]
    assert lines[7].split()[3:] == ["48%", "-", "-", "0", "0", "never"]
    assert lines[8:] == [
        "not met at 2 x capacity: goodput is 48% of its peak, it should be 90%",
        "not met at 2 x capacity: it did not recover within 90 s",
    ]  # fmt: skip


def test_nothing_measured_is_still_a_table() -> None:
    assert list(table(report(complete=False)))[-1].startswith("interrupted")
