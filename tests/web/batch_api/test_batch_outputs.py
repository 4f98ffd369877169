"""write_outputs: the files of a batch become its outputs, as often as it is called."""

import asyncio
from pathlib import Path

import orjson

from chairlift.web.batch_api.batch_outputs import BatchOutputs, write_outputs
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.file_store import FileStore
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.batch_api.response_journal import ResponseJournal
from chairlift.web.batch_api.stored_batch import StoredBatch
from chairlift.web.batch_files.batch_lines import BatchFile, BatchLine
from chairlift.web.batch_files.batch_run import BatchResponse, output_entry

LINES = [BatchLine(number, f"r{number}", "/v1/completions", b"{}") for number in range(5)]


BODY = b'","method":"POST","url":"/v1/completions","body":{}}\n'


def requests(path: Path) -> BatchFile:
    """Return the batch file of LINES."""
    file = path / "requests.jsonl"
    file.write_bytes(b"".join(b'{"custom_id":"' + line.custom_id.encode() + BODY for line in LINES))
    return BatchFile(file, ("/v1/completions",))


def opened(path: Path, *statuses: int) -> tuple[BatchStore, FileStore, StoredBatch]:
    """Return a batch whose first requests have responses."""
    usage = DiskUsage(10**6)
    store, files = BatchStore(path / "batches", usage), FileStore(path / "files", FilesConfig(), usage)
    batch = StoredBatch(
        id="batch_1", tenant="alice", endpoint="/v1/completions", input_file_id="file-1", completion_window="24h",
        metadata={}, created_at=1, expires_at=2, total=5,
    )  # fmt: skip
    (path / "requests").write_bytes(b"x")
    asyncio.run(store.add(batch, path / "requests"))
    with ResponseJournal(store.responses_path(batch), store.errors_path(batch)) as journal:
        for line, status in zip(LINES, statuses, strict=False):
            journal.append(line.custom_id, output_entry(line, BatchResponse(status, "", {})))
    return store, files, batch


def ids_in(files: FileStore, file_id: str | None) -> list[str]:
    assert file_id is not None
    lines = files.path(files.get("alice", file_id)).read_bytes().splitlines()
    return [orjson.loads(each)["custom_id"] for each in lines]


def test_outputs_and_errors_are_the_files_themselves(tmp_path: Path) -> None:
    store, files, batch = opened(tmp_path, 200, 400, 200)
    outputs = write_outputs(store, files, batch, None)
    assert (outputs.total, outputs.completed, outputs.failed) == (5, 2, 1)
    assert ids_in(files, outputs.output_file_id) == ["r0", "r2"] and ids_in(files, outputs.error_file_id) == ["r1"]
    file = files.get("alice", outputs.output_file_id or "")
    assert (file.file_name, file.purpose) == ("batch_1_output.jsonl", "batch_output")
    assert files.path(file).stat().st_ino == store.responses_path(batch).stat().st_ino, "no byte is copied"
    assert write_outputs(store, files, batch, None) == outputs and len(files.of_tenant("alice")) == 2
    assert batch.output_file_id is None
    outputs.assign(batch)
    assert (batch.completed, batch.output_file_id) == (2, outputs.output_file_id)


def test_what_has_expired_is_an_error_once(tmp_path: Path) -> None:
    store, files, batch = opened(tmp_path, 200)
    first = write_outputs(store, files, batch, requests(tmp_path), 4)
    assert write_outputs(store, files, batch, requests(tmp_path), 4) == first
    assert (first.completed, first.failed) == (1, 3) and ids_in(files, first.error_file_id) == ["r1", "r2", "r3"]
    [entry, *_] = files.path(files.get("alice", first.error_file_id or "")).read_bytes().splitlines()
    assert orjson.loads(entry)["error"]["code"] == "batch_expired" and orjson.loads(entry)["response"] is None


def test_a_batch_without_a_response_has_no_output(tmp_path: Path) -> None:
    store, files, batch = opened(tmp_path)
    assert write_outputs(store, files, batch, None) == BatchOutputs(5, 0, 0) and files.of_tenant("alice") == []


def test_what_is_stopped_is_left_for_another_call(tmp_path: Path) -> None:
    store, files, batch = opened(tmp_path, 200)
    for num_steps in range(8):
        answers = iter([False] * num_steps)
        write_outputs(store, files, batch, requests(tmp_path), 4, lambda steps=answers: next(steps, True))  # type: ignore[misc]
        assert not files.of_tenant("alice")
    outputs = write_outputs(store, files, batch, requests(tmp_path), 4)
    assert (outputs.completed, outputs.failed) == (1, 3)
