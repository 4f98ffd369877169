"""StoredBatch: the object of OpenAI's API, at each state."""

import pytest

from chairlift.web.batch_api.stored_batch import MAX_ERROR_CHARS, TIMES, BatchStatus, StoredBatch


def batch() -> StoredBatch:
    return StoredBatch(
        id="batch_1", tenant="alice", endpoint="/v1/completions", input_file_id="file-1", completion_window="24h",
        metadata={}, created_at=5, expires_at=86_405,
    )  # fmt: skip


def test_a_new_batch_is_validated() -> None:
    assert batch().to_object() == {
        "id": "batch_1", "object": "batch", "endpoint": "/v1/completions", "errors": None, "input_file_id": "file-1",
        "completion_window": "24h", "status": "validating", "output_file_id": None, "error_file_id": None,
        "created_at": 5, "expires_at": 86_405, **dict.fromkeys(TIMES),
        "request_counts": {"total": 0, "completed": 0, "failed": 0}, "metadata": None,
    }  # fmt: skip


@pytest.mark.parametrize("status", [each for each in BatchStatus if each is not BatchStatus.VALIDATING])
def test_each_state_has_its_time(status: BatchStatus) -> None:
    each = batch()
    each.enter(status, 7.9)
    shown = each.to_object()
    assert shown["status"] == status and shown[f"{status}_at"] == 7
    assert status.is_final == (status in ("completed", "failed", "expired", "cancelled"))


def test_errors_name_their_lines_and_a_problem_of_the_disk_is_shown_while_it_lasts() -> None:
    each = batch()
    each.add_error("invalid_line", "it is no JSON", 3)
    each.storage_problem = "the disk is full"
    assert each.to_object()["errors"] == {"object": "list", "data": [
        {"code": "invalid_line", "message": "it is no JSON", "param": None, "line": 3},
        {"code": "storage_error", "message": "the disk is full", "param": None, "line": None},
    ]}  # fmt: skip


def test_a_long_message_of_an_error_is_cut() -> None:
    each = batch()
    for length in (MAX_ERROR_CHARS, 9999):
        each.add_error("invalid_line", "x" * length)
    assert [error["message"] for error in each.errors] == ["x" * MAX_ERROR_CHARS, "x" * (MAX_ERROR_CHARS - 3) + "..."]


def test_a_batch_that_has_ended_keeps_no_models() -> None:
    each = batch()
    each.models = models = {"alias": "a"}
    each.enter(BatchStatus.IN_PROGRESS, 1)
    assert StoredBatch.from_json(each.to_json()).models == {"alias": "a"}
    each.enter(BatchStatus.CANCELLED, 2)
    assert each.models == {} and models == {"alias": "a"}, "a copy may be written before"
    each.models = models
    assert StoredBatch.from_json(each.to_json()).models == {}, "an earlier version has kept them"
