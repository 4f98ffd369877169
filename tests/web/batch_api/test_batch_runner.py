"""BatchRunner: a batch goes from its check to its outputs, also across interruptions, full disks and cancellation."""

import asyncio
import errno
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.web.batch_api import batch_runner, batch_slots
from chairlift.web.batch_api.batch_runner import BatchRunner
from chairlift.web.batch_api.batch_slots import BatchSlots
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.file_store import FileStore
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch
from chairlift.web.batch_files import batch_run
from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.batch_files.batch_run import BatchResponse
from support_batch_api import ScriptedRoom, batch_line, batch_lines

WINDOW = 86_400


class Batches:
    """A runner over the folder of a test, whose sender answers by `script`; `sent` counts what it has sent."""

    def __init__(self, path: Path, script: Callable[[BatchLine], Any], num_requests: int = 8) -> None:
        self.now = 1000.0
        self.sent: Counter[str] = Counter()
        self.tenants: set[str] = set()
        self.files = FileStore(path / "files", FilesConfig())
        self.store = BatchStore(path / "batches")
        self._script = script
        self.runner = BatchRunner(
            self.store, self.files, BatchSlots(num_requests, ScriptedRoom()), self.sender, max_requests=num_requests,
            max_body_bytes=1000, now=lambda: self.now,
        )  # fmt: skip
        self._requests = path / "requests.jsonl"

    def sender(self, tenant: str) -> Any:
        self.tenants.add(tenant)

        async def send(line: BatchLine) -> BatchResponse:
            self.sent[line.custom_id] += 1
            status = self._script(line)
            if asyncio.iscoroutine(status):
                status = await status
            return BatchResponse(status, "id", {"id": line.custom_id}, 0.0)

        return send

    def add(self, content: bytes, batch_id: str = "batch_1") -> StoredBatch:
        self._requests.write_bytes(content)
        batch = StoredBatch(
            id=batch_id, tenant="alice", endpoint="/v1/completions", input_file_id="file-1", completion_window="24h",
            metadata={}, created_at=1000, expires_at=1000 + WINDOW,
        )  # fmt: skip
        self.store.add(batch, self._requests)
        self._requests.unlink()
        return batch

    def start(self, content: bytes) -> StoredBatch:
        batch = self.add(content)
        self.runner.start(batch)
        return batch

    def entries(self, file_id: str | None) -> dict[str, Any]:
        if file_id is None:
            return {}
        text = self.files.path(self.files.get("alice", file_id)).read_text()
        entries = [json.loads(line) for line in text.splitlines()]
        assert len({each["custom_id"] for each in entries}) == len(entries)
        return {each["custom_id"]: each for each in entries}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


async def ended(batch: StoredBatch) -> None:
    await until(lambda: batch.status.is_final)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slots, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(batch_run, "FIRST_PAUSE_SECONDS", 0.0)


def counts(batch: StoredBatch) -> tuple[int, int, int]:
    return batch.total, batch.completed, batch.failed


def test_responses_and_errors_come_in_two_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 400 if line.custom_id == "r3" else 200)
        batch = batches.start(batch_lines(10))
        await ended(batch)
        await batches.runner.close()
        assert batch.status is BatchStatus.COMPLETED and counts(batch) == (10, 9, 1) and not batch.errors
        assert set(batches.sent.values()) == {1} and batches.tenants == {"alice"}
        assert {"in_progress_at", "finalizing_at", "completed_at"} == set(batch.times)
        outputs, errors = batches.entries(batch.output_file_id), batches.entries(batch.error_file_id)
        assert len(outputs) == 9 and list(errors) == ["r3"]
        assert outputs["r0"]["response"] == {"status_code": 200, "request_id": "id", "body": {"id": "r0"}}
        assert outputs["r0"]["error"] is None and errors["r3"]["response"]["status_code"] == 400
        assert os.listdir(tmp_path / "batches" / "batch_1") == ["batch.json"]
        purposes = {each.purpose for each in batches.files.of_tenant("alice")}
        assert purposes == {"batch_output"} and BatchStore(tmp_path / "batches").get("alice", "batch_1") == batch

    asyncio.run(scenario())


BAD_FILES: dict[str, tuple[bytes, list[tuple[str, int | None, str]]]] = {
    "no JSON": (batch_line("a") + b"{\n", [("invalid_line", 2, "it is no JSON")]),
    "no UTF-8": (b'{"custom_id": "\xff"}\n', [("invalid_line", 1, "it is no JSON")]),
    "another url": (batch_line("a", "/v1/embeddings"), [("invalid_line", 1, "url must be one of /v1/completions")]),
    "another method": (
        batch_line("a").replace(b"POST", b"GET"), [("invalid_line", 1, "method must be POST, got 'GET'")]
    ),
    "a stream": (batch_line("a", stream=True), [("invalid_line", 1, "body.stream must be false")]),
    "a name twice": (batch_line("a") * 2, [("invalid_line", 2, "custom_id 'a' is that of line 1, too")]),
    "a long line": (
        batch_line("a", prompt="x" * 3000) + b"{",
        [("invalid_line", 1, "more than 1000 bytes"), ("invalid_line", 2, "it is no JSON")],
    ),
    "nothing": (b"\n \r\n", [("empty_file", None, "the file has no requests")]),
    "UTF-16": (batch_line("a").decode().encode("utf-16"), [("invalid_line", 1, "it is no JSON")]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_not_valid_fails_and_names_the_lines(tmp_path: Path, name: str) -> None:
    content, expected = BAD_FILES[name]

    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        batch = batches.start(content)
        await ended(batch)
        await batches.runner.close()
        assert batch.status is BatchStatus.FAILED and not batches.sent and counts(batch) == (0, 0, 0)
        for error, (code, line, message) in zip(batch.errors, expected, strict=False):
            assert (error["code"], error["line"]) == (code, line) and message in error["message"]
        assert len(batch.errors) >= len(expected)

    asyncio.run(scenario())


def test_many_invalid_lines_are_counted_and_a_file_may_be_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_runner, "MAX_REQUESTS", 2)

    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        many = batches.start(b"{\n" * 150)
        long = batches.add(batch_lines(3), "batch_2")
        batches.runner.start(long)
        await ended(many)
        await ended(long)
        await batches.runner.close()
        assert len(many.errors) == 101 and many.errors[-1]["message"] == "50 more lines are invalid"
        assert [each["code"] for each in long.errors] == ["too_many_requests"]

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_byte_order_mark_and_other_line_ends_are_taken(tmp_path: Path, ending: str) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        content = b"\xef\xbb\xbf" + batch_lines(3).replace(b"\n", ending.encode()).removesuffix(ending.encode())
        batch = batches.start(content)
        await ended(batch)
        assert batch.status is BatchStatus.COMPLETED and counts(batch) == (3, 3, 0)
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_batch_goes_on_after_a_restart_and_no_response_is_asked_for_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def first(line: BatchLine) -> int:
            if int(line.custom_id[1:]) >= 6:
                await gate.wait()
            return 200

        batches = Batches(tmp_path, first, num_requests=2)
        batch = batches.start(batch_lines(20))
        await until(lambda: batches.sent["r7"] == 1)
        assert counts(batch) == (20, 6, 0)
        await batches.runner.close()
        assert batch.status is BatchStatus.IN_PROGRESS
        with (tmp_path / "batches/batch_1/responses.jsonl").open("ab") as journal:
            journal.write(b'{"id":"batch_req_1","cus')  # the process was killed within a line

        again = Batches(tmp_path, lambda line: 200)
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await ended(loaded)
        await again.runner.close()
        assert loaded.status is BatchStatus.COMPLETED and counts(loaded) == (20, 20, 0)
        assert set(again.sent) == {f"r{number}" for number in range(6, 20)} and set(again.sent.values()) == {1}
        assert set(again.entries(loaded.output_file_id)) == {f"r{number}" for number in range(20)}

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [BatchStatus.FINALIZING, BatchStatus.CANCELLING])
def test_outputs_are_written_again_after_a_kill(tmp_path: Path, status: BatchStatus) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        batch = batches.start(batch_lines(3))
        await ended(batch)
        await batches.runner.close()
        output = batches.entries(batch.output_file_id)
        for name in ("requests.jsonl", "responses.jsonl"):
            lines = "".join(json.dumps(entry) + "\n" for entry in output.values()).encode()
            (tmp_path / "batches/batch_1" / name).write_bytes(batch_lines(3) if name[2] == "q" else lines)
        batch.enter(status, 2000)
        batch.ending = BatchStatus.COMPLETED if status is BatchStatus.FINALIZING else BatchStatus.CANCELLED
        batches.store.save(batch)

        again = Batches(tmp_path, lambda line: 500)
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await ended(loaded)
        await again.runner.close()
        assert loaded.status is batch.ending and not again.sent and counts(loaded) == (3, 3, 0)
        assert again.entries(loaded.output_file_id) == output and len(again.files.of_tenant("alice")) == 1

    asyncio.run(scenario())


def test_a_cancelled_batch_keeps_its_responses(tmp_path: Path) -> None:
    async def scenario() -> None:
        aborted: list[str] = []

        async def script(line: BatchLine) -> int:
            if int(line.custom_id[1:]) >= 4:
                try:
                    await asyncio.Event().wait()
                finally:
                    aborted.append(line.custom_id)
            return 200

        batches = Batches(tmp_path, script, num_requests=2)
        batch = batches.start(batch_lines(10))
        await until(lambda: batches.sent["r5"] == 1)
        await batches.runner.cancel(batch)
        assert batch.status is BatchStatus.CANCELLING or batch.status.is_final
        await ended(batch)
        assert batch.status is BatchStatus.CANCELLED and counts(batch) == (10, 4, 0) and aborted == ["r4", "r5"]
        assert set(batches.entries(batch.output_file_id)) == {"r0", "r1", "r2", "r3"} and batch.error_file_id is None
        assert {"cancelling_at", "cancelled_at"} < set(batch.times)
        await batches.runner.cancel(batch)
        assert batch.status is BatchStatus.CANCELLED
        complete = batches.add(batch_lines(1), "batch_2")
        batches.runner.start(complete)
        await ended(complete)
        with pytest.raises(InvalidRequest, match="whose status is completed cannot be cancelled"):
            await batches.runner.cancel(complete)
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_batch_is_cancelled_before_it_was_checked(tmp_path: Path) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        batch = batches.start(batch_lines(10))
        await batches.runner.cancel(batch)
        await batches.runner.cancel(batch)
        await ended(batch)
        assert batch.status is BatchStatus.CANCELLED and not batches.sent and batch.output_file_id is None
        await batches.runner.close()

    asyncio.run(scenario())


def test_what_has_no_response_at_the_end_of_the_window_expires(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def script(line: BatchLine) -> int:
            if line.custom_id != "r0":
                await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, script)
        batches.now = 1000 + WINDOW - 0.1
        batch = batches.start(batch_lines(4))
        await ended(batch)
        assert batch.status is BatchStatus.EXPIRED and counts(batch) == (4, 1, 3)
        errors = batches.entries(batch.error_file_id)
        assert set(batches.entries(batch.output_file_id)) == {"r0"} and set(errors) == {"r1", "r2", "r3"}
        assert errors["r1"]["response"] is None and errors["r1"]["error"]["code"] == "batch_expired"
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_busy_server_is_waited_for_and_a_failing_one_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        def script(line: BatchLine) -> int:
            if line.custom_id == "r0":
                return 429 if batches.sent["r0"] < 30 else 200
            return 500

        batches = Batches(tmp_path, script)
        batch = batches.start(batch_lines(2))
        await ended(batch)
        assert batches.sent == {"r0": 30, "r1": batch_runner.MAX_RETRIES + 1} and counts(batch) == (2, 1, 1)
        assert batches.entries(batch.error_file_id)["r1"]["response"]["status_code"] == 500
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_full_disk_stops_a_batch_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_runner, "STORAGE_RETRY_SECONDS", 0.01)
    is_full, write = True, os.write

    def limited(descriptor: int, data: Any) -> int:
        if is_full and b"batch_req" in bytes(data) and b"r5" in bytes(data):
            if len(data) > 20:
                return write(descriptor, bytes(data)[:20])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if is_full and len(data) and not bytes(data).startswith(b'{"id"'):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    async def scenario() -> None:
        nonlocal is_full
        monkeypatch.setattr(os, "write", limited)
        batches = Batches(tmp_path, lambda line: 200, num_requests=1)
        batch = batches.start(batch_lines(8))
        await until(lambda: bool(batch.storage_problem) and batches.sent["r5"] >= 2)
        assert batch.status is BatchStatus.IN_PROGRESS and counts(batch) == (8, 5, 0)
        [shown] = batch.to_object()["errors"]["data"]
        assert shown["code"] == "storage_error" and "No space left on device" in shown["message"]
        is_full = False
        await ended(batch)
        assert batch.status is BatchStatus.COMPLETED and counts(batch) == (8, 8, 0) and not batch.to_object()["errors"]
        assert set(batches.entries(batch.output_file_id)) == {f"r{number}" for number in range(8)}
        assert batches.sent["r0"] == 1 and len(caplog.records) == 1
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_batch_without_its_requests_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        batch = batches.add(batch_lines(1))
        batches.store.requests_path(batch).unlink()
        batches.runner.start(batch)
        await ended(batch)
        assert batch.status is BatchStatus.FAILED and batch.errors[0]["code"] == "file_missing"
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_fault_of_our_own_fails_that_batch_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        def script(line: BatchLine) -> int:
            if line.custom_id == "bad":
                raise RuntimeError("fault")
            return 401 if line.custom_id == "refused" else 200

        batches = Batches(tmp_path, script)
        bad, good = batches.start(batch_line("bad")), batches.add(batch_lines(3), "batch_2")
        refused = batches.add(batch_line("refused"), "batch_3")
        batches.runner.start(good)
        batches.runner.start(refused)
        for batch in (bad, good, refused):
            await ended(batch)
        assert (bad.status, good.status, refused.status) == ("failed", "completed", "failed")
        assert [bad.errors[0]["code"], refused.errors[0]["code"]] == ["internal_error", "config_error"]
        assert "internal error: batch batch_1 has failed" in caplog.text
        await batches.runner.close()

    asyncio.run(scenario())
