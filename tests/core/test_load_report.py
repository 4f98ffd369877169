"""LoadReport: a complete, frozen snapshot that crosses a process boundary unchanged."""

from dataclasses import FrozenInstanceError, fields

import msgspec
import pytest

from chairlift.core.load_report import LoadReport, LoadSummary, ReplicaState


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


SUMMARY = LoadSummary(
    state=ReplicaState.READY, running_requests=3, waiting_requests=2, waiting_tokens=900, expected_wait_ms=41,
    kv_use=0.125, instance_id="9f0c.1", fingerprint="ab12",
)  # fmt: skip


def test_a_summary_is_one_header_line() -> None:
    line = SUMMARY.header_value().decode()
    assert line == (
        "state=ready;running=3;waiting=2;waiting_tokens=900;wait_ms=41;kv=0.125;instance=9f0c.1;fingerprint=ab12"
    )
