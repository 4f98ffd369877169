"""BatchRunner: a batch goes from its check to its outputs, also across interruptions, full disks and cancellation."""

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from chairlift.core.errors import InvalidRequest, Unavailable
from chairlift.web.batch_api import batch_runner, batch_store, file_store
from chairlift.web.batch_api.batch_requests import MAX_RETRIES
from chairlift.web.batch_api.batch_slots import MAX_LOST_ATTEMPTS
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.file_store import FileStore
from chairlift.web.batch_api.response_journal import ResponseJournal
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch
from chairlift.web.batch_files.batch_lines import BatchLine
from support_batch_api import batch_line, batch_lines
from support_batch_runner import WINDOW, Batches, counts, ended, quicken, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


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
        batch = await batches.start(batch_lines(4))
        await until(lambda: batch.completed == 1)
        batches.now += WINDOW
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


def test_a_batch_fails_also_where_its_outputs_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    def broken(*arguments: Any) -> None:
        raise RuntimeError("fault")

    async def scenario() -> None:
        monkeypatch.setattr(batch_runner, "write_outputs", broken)
        batches = Batches(tmp_path, lambda line: 200)
        batch = await batches.start(batch_lines(2))
        await ended(batch)
        await batches.runner.close()
        assert batch.status is BatchStatus.FAILED is stored(tmp_path).status and counts(batch) == (2, 2, 0)
        assert batch.errors[0]["code"] == "internal_error" and batch.output_file_id is None
        assert "the outputs of batch batch_1 are not written" in caplog.text

    asyncio.run(scenario())


@pytest.mark.parametrize("is_over", [False, True])
def test_the_responses_of_a_batch_that_fails_wait_for_a_full_disk_within_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_runner, "STORAGE_RETRY_SECONDS", 0.001)

    async def scenario() -> None:
        def script(line: BatchLine) -> int:
            if line.custom_id == "r2":
                raise RuntimeError("fault")
            return 200

        batches = Batches(tmp_path, script, num_requests=1)
        with monkeypatch.context() as full:
            full.setattr(FileStore, "adopt", disk_full)
            batch = await batches.start(batch_lines(3))
            await until(lambda: bool(batch.storage_problem))
            assert not batch.status.is_final
            if is_over:
                batches.now += WINDOW
                await ended(batch)
        await ended(batch)
        await batches.runner.close()
        assert batch.status is BatchStatus.FAILED and counts(batch) == (3, 2, 0) and not batch.storage_problem
        assert set(batches.entries(batch.output_file_id)) == (set() if is_over else {"r0", "r1"})

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["full", "gone", "fault"])
def test_a_batch_has_failed_once_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:  # fmt: skip
    """It would come back to life after a restart otherwise, unless its folder is gone."""
    monkeypatch.setattr(batch_runner, "STORAGE_RETRY_SECONDS", 0.001)

    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        save, num_failures = batches.store.save, 0

        async def failing(batch: StoredBatch) -> None:
            nonlocal num_failures
            if batch.status is BatchStatus.FAILED and num_failures < 3:
                num_failures += 1
                if fault == "fault":
                    raise RuntimeError("fault")
                number = errno.ENOENT if fault == "gone" else errno.ENOSPC
                raise OSError(number, os.strerror(number))
            await save(batch)

        monkeypatch.setattr(batches.store, "save", failing)
        batch = await batches.add(batch_lines(1))
        batches.store.requests_path(batch).unlink()
        batches.runner.start(batch)
        if fault == "full":
            await until(lambda: bool(batch.storage_problem))
            assert batch.status is BatchStatus.VALIDATING is stored(tmp_path).status
        await ended(batch)
        await batches.runner.close()
        assert batch.status is BatchStatus.FAILED and num_failures == (3 if fault == "full" else 1)
        assert [each["code"] for each in batch.to_object()["errors"]["data"]] == ["file_missing"]
        if fault == "full":
            assert stored(tmp_path) == batch
        else:
            assert "the state of batch batch_1" in caplog.text

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
            await batches.looks()
            assert batches.sent["r0"] == number
            batches.room.is_serving = True
        batches.slots.stop()
        batches.room.is_serving = True
        await batches.looks()
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


def disk_full(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_cancelled_batch_ends_once_a_full_disk_has_a_few_kilobytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Its responses are not written a second time; only its state and the descriptions of its outputs are."""
    monkeypatch.setattr(batch_runner, "STORAGE_RETRY_SECONDS", 0.001)

    async def scenario() -> None:
        aborted = list[str]()

        async def script(line: BatchLine) -> int:
            if line.custom_id == "r3":
                try:
                    await asyncio.Event().wait()
                finally:
                    aborted.append(line.custom_id)
            return 200

        batches = Batches(tmp_path, script)
        batch = await batches.start(batch_lines(4))
        await until(lambda: batch.completed == 3)
        with monkeypatch.context() as full:
            full.setattr(os, "write", disk_full)
            full.setattr(shutil, "copyfile", disk_full)
            with monkeypatch.context() as nothing_left:
                for module in (batch_store, file_store):
                    nothing_left.setattr(module, "write_atomically", disk_full)
                for _ in range(2):
                    with pytest.raises(OSError, match="No space left"):
                        await batches.runner.cancel(batch)
                await until(lambda: bool(batch.storage_problem))
                assert batch.status is BatchStatus.CANCELLING and aborted == ["r3"], "it costs no more tokens"
                [shown] = batch.to_object()["errors"]["data"]
                assert shown["code"] == "storage_error" and batch.output_file_id is None
                assert stored(tmp_path).status is BatchStatus.IN_PROGRESS
            await ended(batch)
        assert batch.status is BatchStatus.CANCELLED and counts(batch) == (4, 3, 0)
        assert set(batches.entries(batch.output_file_id)) == {"r0", "r1", "r2"}
        assert stored(tmp_path) == batch
        await batches.runner.close()

    asyncio.run(scenario())


def stored(path: Path) -> StoredBatch:
    """Return the batch as the next start would find it."""
    return BatchStore(path / "batches", DiskUsage(1)).get("alice", "batch_1")


def test_a_second_cancel_writes_what_the_first_could_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        gate, adopt = threading.Event(), FileStore.adopt

        async def script(line: BatchLine) -> int:
            if line.custom_id == "r1":
                await asyncio.Event().wait()
            return 200

        def slow(self: FileStore, *arguments: Any) -> Any:
            assert gate.wait(20)
            return adopt(self, *arguments)

        batches = Batches(tmp_path, script)
        batch = await batches.start(batch_lines(2))
        await until(lambda: batch.completed == 1)
        monkeypatch.setattr(FileStore, "adopt", slow)
        with monkeypatch.context() as patch:
            patch.setattr(batch_store, "write_atomically", disk_full)
            with pytest.raises(OSError, match="No space left"):
                await batches.runner.cancel(batch)
        assert stored(tmp_path).status is BatchStatus.IN_PROGRESS
        await batches.runner.cancel(batch)
        assert stored(tmp_path).status is BatchStatus.CANCELLING
        gate.set()
        await ended(batch)
        await batches.runner.cancel(batch)
        assert stored(tmp_path).status is BatchStatus.CANCELLED == batch.status
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_cancel_never_replaces_the_final_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests and responses are removed then: a later start could write no outputs."""

    async def scenario() -> None:
        async def script(line: BatchLine) -> int:
            await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, script)
        batch = await batches.start(batch_lines(2))
        await until(lambda: batches.sent.total() == 2)
        remove, is_removing, gate = batches.store.remove_work, threading.Event(), threading.Event()

        def slow(each: StoredBatch) -> None:
            is_removing.set()
            assert gate.wait(20)
            remove(each)

        monkeypatch.setattr(batches.store, "remove_work", slow)
        await batches.runner.cancel(batch)
        await until(is_removing.is_set)
        assert batch.status is BatchStatus.CANCELLING
        await batches.runner.cancel(batch)
        assert stored(tmp_path).status is BatchStatus.CANCELLED
        gate.set()
        await ended(batch)
        await batches.runner.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
def test_a_pause_for_storage_ends_with_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_runner, "STORAGE_RETRY_SECONDS", 1e9)

    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        with monkeypatch.context() as full:
            full.setattr(ResponseJournal, "open", disk_full)
            batch = await batches.start(batch_lines(2))
            await until(lambda: bool(batch.storage_problem))
        assert batch.status is BatchStatus.IN_PROGRESS
        if ending == "cancelled":
            await batches.runner.cancel(batch)
        else:
            batches.now += WINDOW
        await ended(batch)
        await batches.runner.close()
        assert batch.status == ending and not batches.sent and batch.storage_problem == ""

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
def test_a_batch_that_is_about_to_end_tries_a_full_disk_again_with_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_runner, "STORAGE_RETRY_SECONDS", 1e9)
    num_failures = 0

    def failing(*arguments: Any) -> None:
        nonlocal num_failures
        num_failures += 1
        disk_full()

    async def scenario() -> None:
        nonlocal num_failures
        batches = Batches(tmp_path, lambda line: 200)
        for name in ("open", "count"):
            monkeypatch.setattr(ResponseJournal, name, failing)
        batch = await batches.start(batch_lines(2))
        await until(lambda: bool(batch.storage_problem))
        num_failures = 0
        if ending == "cancelled":
            await batches.runner.cancel(batch)
        else:
            batches.now += WINDOW
        await until(lambda: num_failures > 0)
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert num_failures == 1 and not batch.status.is_final
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_batch_with_all_responses_is_completed_also_behind_its_window(tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def first(line: BatchLine) -> int:
            if line.custom_id == "r2":
                await gate.wait()
            return 200

        batches = Batches(tmp_path, first)
        batch = await batches.start(batch_lines(3))
        await until(lambda: batch.completed == 2)
        await batches.runner.close()
        entry = {"id": "batch_req_1", "custom_id": "r2", "response": {"status_code": 400}, "error": None}
        with batches.store.errors_path(batch).open("ab") as journal:
            journal.write(orjson.dumps(entry) + b"\n")  # the process was killed behind the last response
        again = Batches(tmp_path, lambda line: 200)
        again.now += WINDOW
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await ended(loaded)
        await again.runner.close()
        assert loaded.status is BatchStatus.COMPLETED and counts(loaded) == (3, 2, 1) and not again.sent

    asyncio.run(scenario())


def test_the_errors_of_an_expired_batch_are_no_responses_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """That it expires is on the disk before they are: it would be completed by them otherwise."""
    monkeypatch.setattr(batch_runner, "STORAGE_RETRY_SECONDS", 0.001)

    async def scenario() -> None:
        async def first(line: BatchLine) -> int:
            await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, first)
        await batches.start(batch_lines(3))
        await until(lambda: batches.sent.total() == 3)
        save, num_failures = batches.store.save, 0

        async def failing(each: StoredBatch) -> None:
            nonlocal num_failures
            if each.status is BatchStatus.EXPIRED or num_failures < 3:
                num_failures += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            await save(each)

        monkeypatch.setattr(batches.store, "save", failing)
        batches.now += WINDOW
        await until(lambda: num_failures >= 5)
        await batches.runner.close()
        again = Batches(tmp_path, lambda line: 200)
        again.now += WINDOW
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await ended(loaded)
        await again.runner.close()
        assert loaded.status is BatchStatus.EXPIRED and counts(loaded) == (3, 0, 3)

    asyncio.run(scenario())


def test_what_comes_after_the_end_stays_for_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        batch = await batches.add(batch_lines(2))
        batches.runner.check_open()
        await batches.runner.close()
        with pytest.raises(Unavailable, match="takes nothing new") as error:
            batches.runner.check_open()
        assert error.value.details["retry_after"] == 1.0
        batches.runner.start(batch)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await batches.runner.close()
        assert stored(tmp_path).status is BatchStatus.VALIDATING is batch.status and not batches.sent
        again = Batches(tmp_path, lambda line: 200)
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await ended(loaded)
        await again.runner.close()
        assert loaded.status is BatchStatus.COMPLETED

    asyncio.run(scenario())
