"""LoadReport: a complete, frozen snapshot that crosses a process boundary unchanged."""

import json
from dataclasses import FrozenInstanceError, asdict, fields
from typing import Any

import msgspec
import pytest

from chairlift.core.load_report import LoadReport, LoadSummary, ReplicaReport, ReplicaState


def test_a_fresh_report_counts_nothing() -> None:
    report = LoadReport(state=ReplicaState.STARTING)
    counts = {spec.name: getattr(report, spec.name) for spec in fields(report) if spec.name != "state"}
    assert set(counts.values()) == {0}


def test_a_report_cannot_be_changed_afterwards() -> None:
    report = LoadReport(state=ReplicaState.READY)
    with pytest.raises(FrozenInstanceError):
        report.steps = 3  # type: ignore[misc]


def test_the_state_is_required() -> None:
    with pytest.raises(TypeError):
        LoadReport()  # type: ignore[call-arg]


def test_a_report_survives_the_wire() -> None:
    report = LoadReport(
        state=ReplicaState.DRAINING, waiting_requests=3, free_blocks=7, total_blocks=9, step_age_seconds=0.25
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=LoadReport) == report


def test_states_read_like_words() -> None:
    assert [str(state) for state in ReplicaState] == ["starting", "ready", "draining", "dead", "stopped"]


FULL = ReplicaReport(
    state=ReplicaState.DRAINING, waiting_tokens=7, step_age_seconds=0.5, expected_wait_seconds=1.5, instance_id="i.0",
    fingerprint="f", version="1.0", models=("a", "b"), adapters=("x",), block_size=16, max_running_requests=8,
    prefill_tokens_per_second=1000.5,
)  # fmt: skip


def test_a_replicas_report_crosses_http_unchanged() -> None:
    body = json.loads(json.dumps(asdict(FULL)))
    assert ReplicaReport.from_object(body) == FULL
    assert ReplicaReport.from_object({**body, "later_field": {}}) == FULL
    assert ReplicaReport.from_object({"state": "ready"}) == ReplicaReport(state=ReplicaState.READY)
    assert ReplicaReport.from_object({"state": "ready", "expected_wait_seconds": 2}).expected_wait_seconds == 2.0


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({}, "state"), ({"state": "busy"}, "state"), ({"state": 5}, "state"),
        ({"state": "ready", "steps": "5"}, "steps"), ({"state": "ready", "steps": True}, "steps"),
        ({"state": "ready", "models": "a"}, "models"),
        ({"state": "ready", "models": [1]}, "models"), ({"state": "ready", "version": None}, "version"),
        ({"state": "ready", "step_age_seconds": float("inf")}, "step_age_seconds"),
    ],
)  # fmt: skip
def test_a_report_of_another_shape_is_refused_by_field(body: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ReplicaReport.from_object(body)


SUMMARY = LoadSummary(
    state=ReplicaState.READY, running_requests=3, waiting_requests=2, waiting_tokens=900, expected_wait_ms=41,
    kv_use=0.125, instance_id="9f0c.1", fingerprint="ab12",
)  # fmt: skip


def test_a_summary_is_one_header_line() -> None:
    line = SUMMARY.header_value().decode()
    assert line == (
        "state=ready;running=3;waiting=2;waiting_tokens=900;wait_ms=41;kv=0.125;instance=9f0c.1;fingerprint=ab12"
    )
    assert LoadSummary.from_header(line) == SUMMARY
    assert LoadSummary.from_header(line + ";later=1") == SUMMARY
    assert LoadSummary.from_header("state=dead") == LoadSummary(state=ReplicaState.DEAD)


@pytest.mark.parametrize("line", [
    "", "ready", "state=busy", "state=ready;running=x", "state=ready;running=-1", "state=ready;kv=nan",
    "state=ready;kv=1.5", "running=1",
])  # fmt: skip
def test_a_line_that_is_no_summary_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"load|state"):
        LoadSummary.from_header(line)
