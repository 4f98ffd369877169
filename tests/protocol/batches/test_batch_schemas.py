"""The schemas of files and batches hold the objects that the server sends, and nothing else."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift.protocol.batches.batch_schemas import BATCH, BATCHES, FILE, FILES
from chairlift.web.batch_api.file_store import StoredFile
from chairlift.web.batch_api.list_page import list_page
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch

FILE_OBJECT = StoredFile("file-1", "", 5, 7, "a", "batch").to_object()


def batch(status: BatchStatus) -> dict[str, Any]:
    each = StoredBatch(
        id="batch_1", tenant="", endpoint="/v1/completions", input_file_id="file-1", completion_window="24h",
        metadata={"a": "b"}, created_at=1, expires_at=2,
    )  # fmt: skip
    each.enter(status, 7)
    if status is BatchStatus.FAILED:
        each.add_error("invalid_line", "x", 3)
    return each.to_object()


@pytest.mark.parametrize("status", BatchStatus)
def test_a_batch_at_each_state(status: BatchStatus) -> None:
    value = batch(status)
    assert Draft202012Validator(BATCH).is_valid(value)
    for name in value:
        assert not Draft202012Validator(BATCH).is_valid({**value, name: [5]}), name


def test_files_and_lists() -> None:
    assert Draft202012Validator(FILE).is_valid(FILE_OBJECT) and not Draft202012Validator(FILE).is_valid({})
    for schema, value in ((FILES, FILE_OBJECT), (BATCHES, batch(BatchStatus.COMPLETED))):
        for objects in ([], [value]):
            assert Draft202012Validator(schema).is_valid(list_page({}, objects, 1, 1))
        assert not Draft202012Validator(schema).is_valid(list_page({}, [{"id": "x"}], 1, 1))
