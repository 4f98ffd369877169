"""BatchRunner: a batch goes from its check to its outputs, also across interruptions, full disks and cancellation."""

import asyncio
import errno
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.web.batch_api import batch_runner, batch_slots, running_places
from chairlift.web.batch_api.batch_runner import MAX_RETRIES, BatchRunner
from chairlift.web.batch_api.batch_slots import MAX_LOST_ATTEMPTS, BatchSlots
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.file_store import FileStore
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.batch_api.running_places import MAX_RUNNING_OF_TENANT
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch
from chairlift.web.batch_files import batch_run
from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.batch_files.batch_run import BatchResponse
from support_batch_api import ScriptedModels, ScriptedRoom, batch_line, batch_lines

WINDOW = 86_400


class Batches:
    """A runner over the folder of a test, whose sender answers by `script`; `sent` counts what it has sent."""

    def __init__(self, path: Path, script: Callable[[BatchLine], Any], num_requests: int = 8) -> None:
        self.now, self.room, self.models = 1000.0, ScriptedRoom(), ScriptedModels()
        self.sent: Counter[str] = Counter()
        self.tenants: set[str] = set()
        self.usage = DiskUsage(10**9)
        self.files = FileStore(path / "files", FilesConfig(), self.usage)
        self.store = BatchStore(path / "batches", self.usage)
        self._script = script
        self.runner = BatchRunner(
            self.store, self.files, BatchSlots(num_requests, self.room), self.sender, self.models.served(),
            max_requests=num_requests, max_body_bytes=1000, now=lambda: self.now,
        )  # fmt: skip
        self._requests = path / "requests.jsonl"

    def sender(self, tenant: str) -> Any:
        self.tenants.add(tenant)

        async def send(line: BatchLine) -> BatchResponse:
            self.sent[line.custom_id] += 1
            status = self._script(line)
            if asyncio.iscoroutine(status):
                status = await status
            body = status if isinstance(status, dict) else {"id": line.custom_id}
            return BatchResponse(body.get("status", status), "id", body, 0.0)

        return send

    async def add(self, content: bytes, batch_id: str = "batch_1", tenant: str = "alice") -> StoredBatch:
        self._requests.write_bytes(content)
        batch = StoredBatch(
            id=batch_id, tenant=tenant, endpoint="/v1/completions", input_file_id="file-1", completion_window="24h",
            metadata={}, created_at=1000, expires_at=1000 + WINDOW,
        )  # fmt: skip
        await self.store.add(batch, self._requests)
        self._requests.unlink()
        return batch

    async def start(self, content: bytes, batch_id: str = "batch_1", tenant: str = "alice") -> StoredBatch:
        batch = await self.add(content, batch_id, tenant)
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
    monkeypatch.setattr(batch_runner, "POLL_SECONDS", 0.001)


def counts(batch: StoredBatch) -> tuple[int, int, int]:
    return batch.total, batch.completed, batch.failed


def test_responses_and_errors_come_in_two_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 400 if line.custom_id == "r3" else 200)
        batch = await batches.start(batch_lines(10))
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
        assert (
            purposes == {"batch_output"}
            and BatchStore(tmp_path / "batches", DiskUsage(1)).get("alice", "batch_1") == batch
        )

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
        batch = await batches.start(content)
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
    monkeypatch.setattr(batch_runner, "MAX_REQUESTS", 200)

    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        many = await batches.start(b"{\n" * 150)
        long, more = [
            await batches.start(content, f"batch_{len(content)}") for content in (batch_lines(201), b"{\n" * 999)
        ]
        for each in (many, long, more):
            await ended(each)
        await batches.runner.close()
        assert len(many.errors) == 101 and many.errors[-1]["message"] == "50 more lines are invalid"
        assert [each["message"] for each in long.errors] == ["the file has more than 200 requests, which is the limit"]
        assert len(more.errors) == 101 and more.errors[-1]["message"] == "101 or more other lines are invalid"

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_byte_order_mark_and_other_line_ends_are_taken(tmp_path: Path, ending: str) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        content = b"\xef\xbb\xbf" + batch_lines(3).replace(b"\n", ending.encode()).removesuffix(ending.encode())
        batch = await batches.start(content)
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
        batch = await batches.start(batch_lines(20))
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
        batch = await batches.start(batch_lines(3))
        await ended(batch)
        await batches.runner.close()
        output = batches.entries(batch.output_file_id)
        for name in ("requests.jsonl", "responses.jsonl"):
            lines = b"".join(orjson.dumps(entry) + b"\n" for entry in output.values())
            (tmp_path / "batches/batch_1" / name).write_bytes(batch_lines(3) if name[2] == "q" else lines)
        batch.enter(status, 2000)
        batch.ending = BatchStatus.COMPLETED if status is BatchStatus.FINALIZING else BatchStatus.CANCELLED
        await batches.store.save(batch)

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
        batch = await batches.start(batch_lines(10))
        await until(lambda: batches.sent["r5"] == 1)
        await batches.runner.cancel(batch)
        assert batch.status is BatchStatus.CANCELLING or batch.status.is_final
        await ended(batch)
        assert batch.status is BatchStatus.CANCELLED and counts(batch) == (10, 4, 0) and aborted == ["r4", "r5"]
        assert set(batches.entries(batch.output_file_id)) == {"r0", "r1", "r2", "r3"} and batch.error_file_id is None
        assert {"cancelling_at", "cancelled_at"} < set(batch.times)
        await batches.runner.cancel(batch)
        assert batch.status is BatchStatus.CANCELLED
        complete = await batches.add(batch_lines(1), "batch_2")
        batches.runner.start(complete)
        await ended(complete)
        with pytest.raises(InvalidRequest, match="whose status is completed cannot be cancelled"):
            await batches.runner.cancel(complete)
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_batch_is_cancelled_before_it_was_checked(tmp_path: Path) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        batch = await batches.start(batch_lines(10))
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
        batches.now = 1000 + WINDOW - 1.0  # of real time, within which r0 has its response
        batch = await batches.start(batch_lines(4))
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
        batch = await batches.start(batch_lines(2))
        await ended(batch)
        assert batches.sent == {"r0": 30, "r1": MAX_RETRIES + 1} and counts(batch) == (2, 1, 1)
        assert batches.entries(batch.error_file_id)["r1"]["response"]["status_code"] == 500
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_full_disk_stops_a_batch_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_runner, "STORAGE_RETRY_SECONDS", 0.01)
    is_full, write, num_failures = True, os.write, 0

    def limited(descriptor: int, data: Any) -> int:
        nonlocal num_failures
        if is_full and b"batch_req" in bytes(data) and b"r5" in bytes(data):
            if len(data) > 20:
                return write(descriptor, bytes(data)[:20])
            num_failures += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if is_full and len(data) and not bytes(data).startswith(b'{"id"'):
            num_failures += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    async def scenario() -> None:
        nonlocal is_full
        monkeypatch.setattr(os, "write", limited)
        batches = Batches(tmp_path, lambda line: 200, num_requests=1)
        batch = await batches.start(batch_lines(8))
        await until(lambda: bool(batch.storage_problem) and num_failures >= 3)
        assert batch.status is BatchStatus.IN_PROGRESS and counts(batch) == (8, 5, 0)
        [shown] = batch.to_object()["errors"]["data"]
        assert shown["code"] == "storage_error" and "No space left on device" in shown["message"]
        is_full = False
        await ended(batch)
        assert batch.status is BatchStatus.COMPLETED and counts(batch) == (8, 8, 0) and not batch.to_object()["errors"]
        assert set(batches.entries(batch.output_file_id)) == {f"r{number}" for number in range(8)}
        assert set(batches.sent.values()) == {1}, "no response is computed again"
        assert len(caplog.records) == 1
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_batch_without_its_requests_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        batch = await batches.add(batch_lines(1))
        batches.store.requests_path(batch).unlink()
        batches.runner.start(batch)
        await ended(batch)
        assert batch.status is BatchStatus.FAILED and batch.errors[0]["code"] == "file_missing"
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_fault_of_our_own_fails_that_batch_alone_and_its_responses_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    async def scenario() -> None:
        def script(line: BatchLine) -> int:
            if line.custom_id == "bad":
                raise RuntimeError("fault")
            return 400 if line.custom_id == "r1" else 200

        batches = Batches(tmp_path, script, num_requests=1)
        bad = await batches.start(batch_lines(3) + batch_line("bad") + batch_line("later"))
        good = await batches.start(batch_lines(3), "batch_2")
        for batch in (bad, good):
            await ended(batch)
        await batches.runner.close()
        assert (bad.status, good.status) == ("failed", "completed") and bad.errors[0]["code"] == "internal_error"
        assert "internal error: batch batch_1 has failed" in caplog.text and counts(bad) == (5, 2, 1)
        assert set(batches.entries(bad.output_file_id)) == {"r0", "r2"}
        assert set(batches.entries(bad.error_file_id)) == {"r1"}
        assert os.listdir(tmp_path / "batches" / "batch_1") == ["batch.json"]
        loaded = BatchStore(tmp_path / "batches", DiskUsage(1)).get("alice", "batch_1")
        assert loaded.output_file_id == bad.output_file_id and batches.usage.num_bytes() == sum(
            each.num_bytes for each in batches.files.of_tenant("alice")
        )

    asyncio.run(scenario())


UNAVAILABLE = {"status": 503, "error": {"code": "unavailable"}}
LOST: dict[str, Any] = {
    "a refused key": 401, "a forbidden key": 403, "no response": 0, "an engine that starts": UNAVAILABLE,
    "a router without the model": {"status": 404, "error": {"code": "model_not_found"}},
    "the same for Anthropic's API": {"status": 404, "error": {"type": "not_found_error"}},
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_a_service_that_is_lost_is_waited_for_and_no_response_is_lost(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        def script(line: BatchLine) -> Any:
            return LOST[name] if line.custom_id == "r3" and batches.sent["r3"] <= 20 else 200

        batches = Batches(tmp_path, script, num_requests=4)
        batch = await batches.start(batch_lines(6))
        await ended(batch)
        await batches.runner.close()
        assert batch.status is BatchStatus.COMPLETED and counts(batch) == (6, 6, 0) and batches.sent["r3"] == 21

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "num_attempts"),
    [
        ({"status": 503, "error": {"code": "engine_dead"}}, MAX_RETRIES + 1), (500, MAX_RETRIES + 1),
        (504, MAX_RETRIES + 1), (502, MAX_LOST_ATTEMPTS + MAX_RETRIES),
    ],
)  # fmt: skip
def test_a_request_that_may_be_the_reason_is_not_sent_for_ever(tmp_path: Path, status: Any, num_attempts: int) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: status if line.custom_id == "r1" else 200)
        batch = await batches.start(batch_lines(3))
        await ended(batch)
        await batches.runner.close()
        assert batches.sent["r1"] == num_attempts and counts(batch) == (3, 2, 1)

    asyncio.run(scenario())


def test_a_retry_waits_until_the_service_is_ready_and_none_follows_the_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        def script(line: BatchLine) -> Any:
            batches.room.is_serving = False  # the engine fails, and starts again
            return UNAVAILABLE if batches.sent["r0"] % 2 else 500

        batches = Batches(tmp_path, script, num_requests=1)
        batch = await batches.start(batch_lines(1))
        for number in range(1, 4):
            await until(lambda expected=number: batches.sent["r0"] == expected)  # type: ignore[misc]
            await asyncio.sleep(0.02)
            assert batches.sent["r0"] == number
            batches.room.is_serving = True
        batches.runner._slots.stop()
        batches.room.is_serving = True
        await asyncio.sleep(0.02)
        assert batches.sent["r0"] <= 4 and batch.status is BatchStatus.IN_PROGRESS
        await batches.runner.close()
        assert batches.store.responses_path(batch).read_bytes() == b"" == batches.store.errors_path(batch).read_bytes()

    asyncio.run(scenario())


def test_errors_that_are_final_stay_so_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def first(line: BatchLine) -> int:
            if line.custom_id == "r2":
                await asyncio.Event().wait()
            return 500 if line.custom_id == "r0" else 200

        batches = Batches(tmp_path, first)
        batch = await batches.start(batch_lines(3))
        await until(lambda: counts(batch) == (3, 1, 1))
        await batches.runner.close()
        again = Batches(tmp_path, lambda line: 200)
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await ended(loaded)
        await again.runner.close()
        assert counts(loaded) == (3, 2, 1) and again.sent == {"r2": 1}

    asyncio.run(scenario())


@pytest.mark.parametrize("tail", [b"\x00" * 64, b"\x00" * 64 + b"\n", b'{"id":"batch_req_1"}\n', b"noise\n" * 3])
def test_what_a_power_failure_leaves_behind_the_last_line_is_removed(tmp_path: Path, tail: bytes) -> None:
    async def scenario() -> None:
        async def first(line: BatchLine) -> int:
            if int(line.custom_id[1:]) >= 4:
                await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, first)
        batch = await batches.start(batch_lines(8))
        await until(lambda: batch.completed == 4)
        await batches.runner.close()
        for path in (batches.store.responses_path(batch), batches.store.errors_path(batch)):
            with path.open("ab") as journal:
                journal.write(tail)
        again = Batches(tmp_path, lambda line: 200)
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await ended(loaded)
        await again.runner.close()
        assert loaded.status is BatchStatus.COMPLETED and counts(loaded) == (8, 8, 0)
        assert set(again.sent) == {f"r{number}" for number in range(4, 8)} and loaded.error_file_id is None
        assert set(again.entries(loaded.output_file_id)) == {f"r{number}" for number in range(8)}

    asyncio.run(scenario())


def test_responses_are_brought_to_the_disk_while_the_batch_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_runner, "SYNC_SECONDS", 0.001)
    synced, sync = set[int](), os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    async def scenario() -> None:
        async def first(line: BatchLine) -> int:
            if line.custom_id == "r1":
                await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, first)
        batch = await batches.start(batch_lines(2))
        await until(lambda: batch.completed == 1)
        journal = batches.store.responses_path(batch).stat()
        monkeypatch.setattr(os, "fsync", fsync)
        await until(lambda: journal.st_ino in synced and batches.usage.num_bytes() > journal.st_size)
        await batches.runner.close()

    asyncio.run(scenario())


def test_one_tenant_leaves_running_places_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def script(line: BatchLine) -> int:
            if line.custom_id != "quick":
                await gate.wait()
            return 200

        batches = Batches(tmp_path, script, num_requests=100)
        many = [await batches.start(batch_lines(1), f"batch_{number}") for number in range(12)]
        await until(lambda: sum(each.status is BatchStatus.IN_PROGRESS for each in many) == MAX_RUNNING_OF_TENANT)
        other = await batches.start(batch_line("quick"), "batch_other", "bob")
        await ended(other)
        assert other.status is BatchStatus.COMPLETED
        assert [each.status for each in many[8:]] == ["validating"] * 4
        await batches.runner.cancel(many[11])
        await ended(many[11])
        assert many[11].status is BatchStatus.CANCELLED, "a batch that waits for its place can be cancelled"
        gate.set()
        for each in many:
            await ended(each)
        assert [each.status for each in many] == ["completed"] * 11 + ["cancelled"]
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_batch_that_waits_for_its_place_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_places, "MAX_RUNNING_OF_TENANT", 1)

    async def scenario() -> None:
        async def script(line: BatchLine) -> int:
            await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, script)
        await batches.start(batch_lines(1))
        await until(lambda: batches.sent["r0"] == 1)
        batches.now += WINDOW
        waiting = await batches.start(batch_lines(3) + b"{", "batch_2")
        await ended(waiting)
        assert waiting.status is BatchStatus.EXPIRED and counts(waiting) == (3, 0, 3)
        assert set(batches.entries(waiting.error_file_id)) == {"r0", "r1", "r2"} and batches.sent["r1"] == 0
        await batches.runner.close()

    asyncio.run(scenario())


def test_models_that_are_not_served_fail_the_batch_and_are_named_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        content = batch_line("a") + b"".join(batch_line(f"b{n}", model="other") for n in range(3))
        batch = await batches.start(content + batch_line("c", model="third"))
        await ended(batch)
        await batches.runner.close()
        assert batch.status is BatchStatus.FAILED and not batches.sent
        assert [(each["code"], each["line"]) for each in batch.errors] == [("invalid_line", 2), ("invalid_line", 5)]
        assert "'other' is not served here" in batch.errors[0]["message"]

    asyncio.run(scenario())


def test_models_are_asked_for_once_the_service_is_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        batches.room.is_serving, names = False, batches.models.names
        batches.models.names = {}  # a router that knows no replica yet
        batch, other = await batches.start(batch_lines(1)), await batches.start(batch_lines(1), "batch_2")
        await asyncio.sleep(0.02)
        assert batch.status is BatchStatus.VALIDATING
        await batches.runner.cancel(other)
        await ended(other)
        batches.models.names, batches.room.is_serving = names, True
        await ended(batch)
        assert (batch.status, other.status) == ("completed", "cancelled")
        await batches.runner.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["name", "default", "fingerprint"])
def test_a_batch_is_not_continued_with_another_model(tmp_path: Path, change: str) -> None:
    async def scenario() -> None:
        async def first(line: BatchLine) -> int:
            if line.custom_id != "r0":
                await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, first)
        content = b"".join(batch_line(f"r{number}", model=None if number == 2 else "fake") for number in range(4))
        batch = await batches.start(content)
        await until(lambda: batch.completed == 1)
        await batches.runner.close()
        assert batch.models == {"fake": "fake", "": "fake"} and batch.fingerprint == "f1"

        again = Batches(tmp_path, lambda line: 200)
        served = again.models.names
        match change:
            case "name":
                again.models.names = {"": "other", "other": "other"}
            case "default":
                again.models.names = {**served, "": "other"}
            case _:
                again.models.fingerprint = "f2"
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await until(lambda: bool(loaded.model_problem))
        await asyncio.sleep(0.02)
        assert loaded.status is BatchStatus.IN_PROGRESS and not again.sent and counts(loaded) == (4, 1, 0)
        [shown] = loaded.to_object()["errors"]["data"]
        assert shown["code"] == "model_not_served" and "'fake'" in shown["message"] and "f1" not in served
        again.models.names, again.models.fingerprint = served, "f1"
        await ended(loaded)
        assert loaded.status is BatchStatus.COMPLETED and not loaded.to_object()["errors"]
        assert set(again.sent) == {"r1", "r2", "r3"}
        await again.runner.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
def test_a_batch_without_its_model_is_cancelled_or_expires_with_what_it_has(tmp_path: Path, ending: str) -> None:
    async def scenario() -> None:
        async def first(line: BatchLine) -> int:
            if line.custom_id != "r0":
                await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, first)
        batch = await batches.start(batch_lines(3))
        await until(lambda: batch.completed == 1)
        await batches.runner.close()
        again = Batches(tmp_path, lambda line: 200)
        again.models.names = {}
        again.now = 1000 + WINDOW - (0.05 if ending == "expired" else 1000)
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        if ending == "cancelled":
            await until(lambda: bool(loaded.model_problem))
            await again.runner.cancel(loaded)
        await ended(loaded)
        assert loaded.status == ending and not loaded.to_object()["errors"] and not again.sent
        assert counts(loaded) == ((3, 1, 0) if ending == "cancelled" else (3, 1, 2))
        assert set(again.entries(loaded.output_file_id)) == {"r0"}
        await again.runner.close()

    asyncio.run(scenario())


def test_outputs_are_seen_at_the_end_and_counts_never_fall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, gate = batch_runner.write_outputs, threading.Event()

    def slow(*arguments: Any) -> Any:
        outputs = written(*arguments)
        assert gate.wait(20)
        return outputs

    async def scenario() -> None:
        monkeypatch.setattr(batch_runner, "write_outputs", slow)
        batches = Batches(tmp_path, lambda line: 200 if line.custom_id != "r1" else 400)
        batch = await batches.start(batch_lines(5))
        await until(lambda: batch.status is BatchStatus.FINALIZING and bool(batches.files.of_tenant("alice")))
        assert counts(batch) == (5, 4, 1) and batch.output_file_id is None and batch.error_file_id is None
        gate.set()
        await ended(batch)
        assert counts(batch) == (5, 4, 1) and batch.output_file_id and batch.error_file_id
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_batch_that_fails_at_this_moment_is_not_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        save, is_saving, gate = batches.store.save, asyncio.Event(), asyncio.Event()

        async def slow(batch: StoredBatch) -> None:
            is_saving.set()
            await gate.wait()
            await save(batch)

        monkeypatch.setattr(batches.store, "save", slow)
        batch = await batches.start(b"{")
        await is_saving.wait()
        with pytest.raises(InvalidRequest, match="whose status changes to a final one cannot be cancelled"):
            await batches.runner.cancel(batch)
        gate.set()
        await ended(batch)
        await batches.runner.close()
        assert batch.status is BatchStatus.FAILED and "cancelling_at" not in batch.times
        assert BatchStore(tmp_path / "batches", DiskUsage(1)).get("alice", batch.id).status is BatchStatus.FAILED

    asyncio.run(scenario())


def test_outputs_take_no_further_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk a batch can be cancelled: its responses are not written a second time."""

    async def scenario() -> None:
        async def script(line: BatchLine) -> int:
            if line.custom_id == "r3":
                await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, script)
        batch = await batches.start(batch_lines(4))
        await until(lambda: batch.completed == 3)

        def fail(*arguments: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "write", fail)
        await batches.runner.cancel(batch)
        await ended(batch)
        assert batch.status is BatchStatus.CANCELLED and set(batches.entries(batch.output_file_id)) == {
            "r0",
            "r1",
            "r2",
        }
        await batches.runner.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_no_request_is_sent_before_it_is_written_that_the_batch_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_runner, "STORAGE_RETRY_SECONDS", 0.001)

    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        save, num_failures = batches.store.save, 0

        async def failing(batch: StoredBatch) -> None:
            nonlocal num_failures
            if batch.status is BatchStatus.IN_PROGRESS and num_failures < 3:
                num_failures += 1
                batches.models.fingerprint = f"f{num_failures}"
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            await save(batch)
            if batch.status is BatchStatus.IN_PROGRESS:
                assert not batches.sent
                if is_cancelled:
                    await batches.runner.cancel(batches.store.get("alice", batch.id))

        monkeypatch.setattr(batches.store, "save", failing)
        batch = await batches.start(batch_lines(2))
        await ended(batch)
        await batches.runner.close()
        assert num_failures == 3 and batch.fingerprint == "f3" and batch.models == {"fake": "fake"}
        assert counts(batch) == ((2, 0, 0) if is_cancelled else (2, 2, 0)) and bool(batches.sent) is not is_cancelled
        assert batch.status is (BatchStatus.CANCELLED if is_cancelled else BatchStatus.COMPLETED)
        assert BatchStore(tmp_path / "batches", DiskUsage(1)).get("alice", batch.id).status is batch.status

    asyncio.run(scenario())
