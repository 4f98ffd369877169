"""ProcessRecord: its file is read as it was written, by other releases too, and nothing else is believed."""

import json
from typing import Any

import pytest

from chairlift.cluster.local.process_record import ProcessRecord, RecordState
from support_shares import for_each

RECORD = ProcessRecord(
    replica_id="r-1", host="::1", port=8001, state=RecordState.FAILED, version="v", cpus=(0, 3), gpus=("0", "GPU-1"),
    started_at=12.5, ended_at=20.0, has_served=True, num_failures=2, replaces="r-0", exit_code=-9, note="é",
)  # fmt: skip


def test_a_record_is_read_as_it_was_written() -> None:
    assert ProcessRecord.from_json(RECORD.to_json()) == RECORD
    assert ProcessRecord.from_json(ProcessRecord(replica_id="r-2", port=1).to_json()).exit_code is None


def test_the_record_of_another_release_is_read() -> None:
    body = {"replica_id": "r-1", "port": 8001, "state": "stopping", "a_later_field": [1]}
    assert ProcessRecord.from_json(json.dumps(body)) == ProcessRecord(
        replica_id="r-1", port=8001, state=RecordState.STOPPING
    )


@for_each("text", ["", "{", "null", "[]", "{}", RECORD.to_json()[:-1], '{"replica_id": "r"}', "\0" * 9])
def test_half_a_record_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ProcessRecord.from_json(text)


@for_each(
    ("name", "value"),
    [
        ("port", "8001"), ("port", True), ("port", None), ("state", "gone"), ("cpus", ["0"]), ("cpus", 3),
        ("gpus", [0]), ("started_at", "x"), ("is_signalled", 1), ("exit_code", 1.5), ("note", None),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_an_error(name: str, value: Any) -> None:
    body = json.loads(RECORD.to_json()) | {name: value}
    with pytest.raises(ValueError, match=r"."):
        ProcessRecord.from_json(json.dumps(body))


@pytest.mark.parametrize("state", RecordState)
def test_a_replica_may_run_until_its_end_is_noticed(state: RecordState) -> None:
    record = ProcessRecord(replica_id="r", port=1, state=state)
    assert record.may_run == (state in (RecordState.ALIVE, RecordState.STOPPING))
