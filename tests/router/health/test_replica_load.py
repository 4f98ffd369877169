"""parse_load, parse_load_header: every field of a report is read, missing ones stay, and nonsense is refused."""

import json
from dataclasses import asdict

import pytest

from chairlift.core.load_report import LoadSummary, ReplicaReport, ReplicaState
from chairlift.router.health.replica_load import MAX_HEADER_CHARS, ReplicaLoad, parse_load, parse_load_header
from support_shares import for_each

NOT_IN_THE_HEADER = frozenset(
    {"prefill_tokens_per_second", "output_tokens_per_second", "max_running_requests", "adapters", "aliases"}
    | {"cpu_ratio", "memory_ratio", "gpu_ratio", "gpu_memory_ratio"}
    | {"prompt_tokens", "cached_tokens", "output_tokens"}
)

BODY = {
    "state": "ready", "instance_id": "p1", "waiting_requests": 2, "waiting_tokens": 300, "running_requests": 7,
    "total_blocks": 100, "free_blocks": 25, "admission_waiting_requests": 3, "admission_waiting_tokens": 100,
    "expected_wait_seconds": 0.25, "prefill_tokens_per_second": 1200.5, "adapters": ["sql"],
    "aliases": ["org/m"], "fingerprint": "f1",
    "output_tokens_per_second": 80.5, "max_running_requests": 16, "cpu_ratio": 0.5, "memory_ratio": 0.25,
    "gpu_ratio": 1, "gpu_memory_ratio": 0.125, "prompt_tokens": 900, "cached_tokens": 300, "output_tokens": 50,
    "fingerprints": {"sql": "f2"}, "steps": 9, "of_the_future": {"x": []},
}  # fmt: skip


def test_every_field_is_read() -> None:
    load = parse_load(BODY, 5.0)
    assert (load.at_seconds, load.state, load.incarnation) == (5.0, ReplicaState.READY, "p1")
    assert (load.waiting_requests, load.waiting_tokens, load.running_requests) == (3, 300, 7)
    assert (load.expected_wait_seconds, load.prefill_tokens_per_second, load.kv_usage_ratio) == (0.25, 1200.5, 0.75)
    assert (load.output_tokens_per_second, load.max_running_requests) == (80.5, 16)
    assert (load.cpu_ratio, load.memory_ratio, load.gpu_ratio, load.gpu_memory_ratio) == (0.5, 0.25, 1.0, 0.125)
    assert load.aliases == ("org/m",)
    assert (load.adapters, load.fingerprints) == (frozenset({"sql"}), {"": "f1", "sql": "f2"})
    assert (load.prompt_tokens, load.cached_tokens, load.output_tokens) == (900, 300, 50)
    assert load.missing == frozenset()


def test_what_a_replica_writes_is_read() -> None:
    report = ReplicaReport(
        state=ReplicaState.DRAINING, waiting_requests=1, waiting_tokens=7, running_requests=2, total_blocks=8,
        free_blocks=6, admission_waiting_requests=3, expected_wait_seconds=1.5, instance_id="i.0", fingerprint="f",
        models=("a", "b"), adapters=("x",), aliases=("o/a",), prefill_tokens_per_second=1000.5,
        output_tokens_per_second=70.5, max_running_requests=4, cpu_ratio=0.5, memory_ratio=0.25,
    )  # fmt: skip
    load = parse_load(json.loads(json.dumps(asdict(report))), 5.0)
    assert load == ReplicaLoad(
        at_seconds=5.0, state=ReplicaState.DRAINING, incarnation="i.0", waiting_requests=3, waiting_tokens=7,
        running_requests=2, expected_wait_seconds=1.5, prefill_tokens_per_second=1000.5, kv_usage_ratio=0.25,
        adapters=frozenset({"x"}), aliases=("o/a",), fingerprints={"": "f"},
        output_tokens_per_second=70.5, max_running_requests=4,
        cpu_ratio=0.5, memory_ratio=0.25, gpu_ratio=None, gpu_memory_ratio=None,
    )  # fmt: skip
    summary = LoadSummary(
        state=ReplicaState.READY, running_requests=3, waiting_requests=2, waiting_tokens=900, expected_wait_ms=41,
        kv_use=0.125, instance_id="9f0c.1", fingerprint="ab12",
    )  # fmt: skip
    assert parse_load_header(summary.header_value().decode(), 3.0) == ReplicaLoad(
        at_seconds=3.0, state=ReplicaState.READY, incarnation="9f0c.1", waiting_requests=2, waiting_tokens=900,
        running_requests=3, expected_wait_seconds=0.041, kv_usage_ratio=0.125, fingerprints={"": "ab12"},
        missing=NOT_IN_THE_HEADER,
    )  # fmt: skip


def test_missing_fields_come_from_the_report_before() -> None:
    part = parse_load({"running_requests": 1, "state": "draining"}, 6.0)
    load = part.completed_by(parse_load(BODY, 5.0))
    assert (load.running_requests, load.state, load.at_seconds) == (1, ReplicaState.DRAINING, 6.0)
    assert (load.incarnation, load.waiting_tokens, load.kv_usage_ratio) == ("p1", 300, 0.75)
    assert load.adapters == {"sql"} and load.fingerprints == {"": "f1", "sql": "f2"}
    assert (load.cpu_ratio, load.gpu_ratio) == (0.5, 1.0)
    unknown = parse_load({"gpu_ratio": None}, 6.0).completed_by(parse_load(BODY, 5.0))
    assert (unknown.cpu_ratio, unknown.gpu_ratio) == (0.5, None), "null is a report, too"
    none_left = parse_load({**BODY, "adapters": []}, 6.0).completed_by(parse_load(BODY, 5.0))
    assert none_left.adapters == frozenset(), "an empty list is a report, too"


@for_each(
    "fields",
    [
        None, [], "ready", 7, {"state": "fine"}, {"state": ["ready"]}, {"state": 1}, {"running_requests": "7"},
        {"running_requests": -1}, {"running_requests": True}, {"running_requests": float("nan")},
        {"running_requests": float("inf")}, {"running_requests": 10**400}, {"waiting_tokens": []},
        {"expected_wait_seconds": {}}, {"instance_id": 7}, {"instance_id": "x" * 257}, {"adapters": "sql"},
        {"aliases": "m"}, {"aliases": [7]},
        {"adapters": [1]}, {"fingerprints": []}, {"fingerprint": {}}, {"total_blocks": -5},
        {"cpu_ratio": 1.5}, {"memory_ratio": -0.1}, {"gpu_ratio": "1"}, {"gpu_memory_ratio": float("nan")},
    ],
)  # fmt: skip
def test_nonsense_is_refused(fields: object) -> None:
    with pytest.raises(ValueError, match="load report"):
        parse_load(fields, 0.0)


def test_long_lists_and_names_are_cut() -> None:
    names = [f"a{number}" for number in range(5000)]
    load = parse_load({"adapters": ["x" * 300, *names], "fingerprints": {"m": "f", "n": 7, "o": "y" * 300}}, 0.0)
    assert len(load.adapters) == 999 and "x" * 300 not in load.adapters
    assert load.fingerprints == {"m": "f"}


def test_a_header_is_read() -> None:
    text = "state=ready;running=7;waiting=2;waiting_tokens=300;wait_ms=500;kv=0.125;instance=9f0c.1;fingerprint=ab12"
    load = parse_load_header(text, 3.0)
    assert load is not None and load.at_seconds == 3.0
    assert (load.state, load.incarnation, load.running_requests) == (ReplicaState.READY, "9f0c.1", 7)
    assert (load.waiting_requests, load.waiting_tokens, load.expected_wait_seconds) == (2, 300, 0.5)
    assert (load.kv_usage_ratio, load.fingerprints) == (0.125, {"": "ab12"})
    assert load.missing == NOT_IN_THE_HEADER


@pytest.mark.parametrize("text", ["running=7", " running=7 ; later=x", "running=7;", "state=;running=7;instance="])
def test_a_header_may_have_fewer_and_other_fields(text: str) -> None:
    load = parse_load_header(text, 0.0)
    assert load is not None and (load.running_requests, load.state, load.incarnation) == (7, None, "")


def test_an_id_that_looks_like_a_number_stays_a_text() -> None:
    load = parse_load_header("instance=1e5", 0.0)
    assert load is not None and load.incarnation == "1e5"


@for_each(
    "text",
    [
        "", " ", "7", "ready", "=", "=1", "state", "state=fine", "running=many", "running=-1", "running=nan",
        "running=1e400", "running=", "running=1;running=x", "color=red", "{", "[]", '{"running":1}', ";" * 4000,
        "running=1;" + "x" * MAX_HEADER_CHARS, "running=\ud800", "instance=" + "x" * 300,
    ],
)  # fmt: skip
def test_a_header_without_sense_is_no_report(text: str) -> None:
    assert parse_load_header(text, 0.0) is None
