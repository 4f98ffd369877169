"""BatchRequests: checks, models, running places, and responses on the disk."""

import asyncio
import errno
import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.web.batch_api import batch_requests, batch_runner
from chairlift.web.batch_api.batch_models import BatchModels
from chairlift.web.batch_api.batch_requests import MAX_RUNNING_OF_TENANT
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.response_journal import ResponseJournal
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch
from chairlift.web.batch_files.batch_lines import BatchFile, BatchLine
from support_batch_api import ScriptedModels, batch_line, batch_lines
from support_batch_runner import WINDOW, Batches, counts, ended, quicken, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


def test_many_invalid_lines_are_counted_and_a_file_may_be_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_requests, "MAX_REQUESTS", 200)

    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200)
        many = await batches.start(b"{\n" * 150)
        empty = await batches.start(batch_lines(1) + b"\n" * 100_000 + b"{", "batch_empty")
        long, more = [
            await batches.start(content, f"batch_{len(content)}") for content in (batch_lines(201), b"{\n" * 999)
        ]
        for each in (many, long, more, empty):
            await ended(each)
        await batches.runner.close()
        [problem] = empty.errors
        assert (problem["code"], problem["message"]) == (
            "too_many_lines", "the file has more than 800 lines, empty ones included, which is the limit"
        )  # fmt: skip
        assert len(many.errors) == 101 and many.errors[-1]["message"] == "50 more lines are invalid"
        assert [each["message"] for each in long.errors] == ["the file has more than 200 requests, which is the limit"]
        assert len(more.errors) == 101 and more.errors[-1]["message"] == "101 or more other lines are invalid"

    asyncio.run(scenario())


def test_responses_are_brought_to_the_disk_while_the_batch_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_requests, "SYNC_SECONDS", 0.001)
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
    monkeypatch.setattr(batch_requests, "MAX_RUNNING_OF_TENANT", 1)

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
        await batches.looks()
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
        await again.looks()
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
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await until(lambda: bool(loaded.model_problem))
        if ending == "cancelled":
            await again.runner.cancel(loaded)
        else:
            again.now += WINDOW
        await ended(loaded)
        assert loaded.status == ending and not loaded.to_object()["errors"] and not again.sent
        assert counts(loaded) == ((3, 1, 0) if ending == "cancelled" else (3, 1, 2))
        assert set(again.entries(loaded.output_file_id)) == {"r0"}
        await again.runner.close()

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
        assert num_failures == 3 and batch.fingerprint == "f3"
        assert counts(batch) == ((2, 0, 0) if is_cancelled else (2, 2, 0)) and bool(batches.sent) is not is_cancelled
        assert batch.status is (BatchStatus.CANCELLED if is_cancelled else BatchStatus.COMPLETED)
        assert BatchStore(tmp_path / "batches", DiskUsage(1)).get("alice", batch.id).status is batch.status

    asyncio.run(scenario())


NOT_FOUND = {"status": 404, "error": {"code": "model_not_found"}}


def shown_problem(batch: StoredBatch) -> str:
    """Return the message of the only error that a client sees."""
    [shown] = batch.to_object()["errors"]["data"]
    assert shown["code"] == "model_not_served"
    message: str = shown["message"]
    return message


def test_batches_that_wait_for_their_model_leave_their_places_to_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def first(line: BatchLine) -> int:
            await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, first)
        for number in range(MAX_RUNNING_OF_TENANT):
            await batches.start(batch_lines(2), f"batch_{number}")
        await until(lambda: all(each.status is BatchStatus.IN_PROGRESS for each in batches.store.unfinished()))
        await batches.runner.close()

        again = Batches(tmp_path, lambda line: 200)
        again.models.names = {"": "new", "new": "new"}
        old = again.store.unfinished()
        for each in old:
            again.runner.start(each)
        new = await again.start(batch_lines(2, model="new"), "batch_new")
        await ended(new)
        assert new.status is BatchStatus.COMPLETED and {each.status for each in old} == {BatchStatus.IN_PROGRESS}
        assert {shown_problem(each)[:34] for each in old} == {"the batch was made for the model '"}
        again.models.names = {"fake": "fake"}
        for each in old:
            await ended(each)
        assert {each.status for each in old} == {BatchStatus.COMPLETED} and set(again.sent.values()) == {9}
        await again.runner.close()

    asyncio.run(scenario())


def test_a_batch_gives_its_place_back_when_its_model_is_lost_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_requests, "MAX_RUNNING_OF_TENANT", 1)

    async def scenario() -> None:
        def script(line: BatchLine) -> Any:
            if line.custom_id == "r2" and batches.sent["r2"] == 1:
                batches.models.names = {"other": "other"}
            return 200 if line.model in batches.models.names else NOT_FOUND

        batches = Batches(tmp_path, script, num_requests=1)
        lost = await batches.start(batch_lines(4))
        await until(lambda: bool(lost.model_problem))
        assert lost.status is BatchStatus.IN_PROGRESS and counts(lost) == (4, 2, 0)
        assert "made for the model 'fake'" in shown_problem(lost)
        other = await batches.start(batch_line("o", model="other"), "batch_2")
        await ended(other)
        assert other.status is BatchStatus.COMPLETED and lost.status is BatchStatus.IN_PROGRESS
        num_sent = batches.sent.total()
        await batches.looks()
        assert batches.sent.total() == num_sent, "nothing is sent for a model that is not served"
        batches.models.names = {"fake": "fake"}
        await ended(lost)
        await batches.runner.close()
        assert counts(lost) == (4, 4, 0) and not lost.to_object()["errors"]
        assert (batches.sent["r0"], batches.sent["r1"], batches.sent["r3"]) == (1, 1, 1)

    asyncio.run(scenario())


def test_a_response_that_is_not_written_yet_outlives_the_loss_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_runner, "STORAGE_RETRY_SECONDS", 0.001)
    append, is_full = ResponseJournal.append, True

    def limited(self: ResponseJournal, custom_id: str, entry: Any) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, custom_id, entry)

    async def scenario() -> None:
        nonlocal is_full
        monkeypatch.setattr(ResponseJournal, "append", limited)
        batches = Batches(tmp_path, lambda line: 200)
        batch = await batches.start(batch_lines(2))
        await until(lambda: bool(batch.storage_problem) and batches.sent.total() == 2)
        batches.models.names = {}
        await batches.looks()
        is_full = False
        await ended(batch)
        await batches.runner.close()
        assert counts(batch) == (2, 2, 0) and set(batches.sent.values()) == {1}

    asyncio.run(scenario())


def waiting_models(models: ScriptedModels) -> BatchModels:
    """Return the models of a router that waits 300 s for one."""
    return BatchModels(models.resolve, has_models=lambda: bool(models.names), wait_seconds=300.0)


@pytest.mark.parametrize("is_served_later", [False, True])
def test_a_new_batch_waits_for_its_model_without_a_place_and_fails_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_served_later: bool
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_requests, "MAX_RUNNING_OF_TENANT", 1)

    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200, served=waiting_models)
        batches.models.names = {}
        batch = await batches.start(batch_lines(2))
        await until(lambda: bool(batch.model_problem))
        batches.clock += 1000
        await batches.looks()
        assert batch.status is BatchStatus.VALIDATING, "no name is wrong while no model is known"
        assert shown_problem(batch).endswith("the batch begins when it is served")
        batches.models.names = {"other": "other"}
        other = await batches.start(batch_line("o", model="other"), "batch_2")
        await ended(other)
        assert other.status is BatchStatus.COMPLETED
        await batches.looks()
        assert batch.status is BatchStatus.VALIDATING, "the time is counted from the first model on"
        if is_served_later:
            batches.models.names["fake"] = "fake"
        else:
            batches.clock += 300
        await ended(batch)
        await batches.runner.close()
        if is_served_later:
            assert counts(batch) == (2, 2, 0) and not batch.to_object()["errors"]
        else:
            assert batch.status is BatchStatus.FAILED and not batches.sent["r0"]
            assert [(each["code"], each["line"]) for each in batch.to_object()["errors"]["data"]] == [
                ("invalid_line", 1)
            ]

    asyncio.run(scenario())


def test_neither_a_set_clock_nor_a_service_that_is_not_ready_fails_a_batch_that_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200, served=waiting_models)
        batches.models.names = {"other": "other"}
        batch = await batches.start(batch_lines(2))
        await until(lambda: bool(batch.model_problem))
        batches.now += 3600
        await batches.looks()
        batches.clock += 299
        batches.room.is_serving = False
        await batches.looks()
        batches.clock += 299
        batches.room.is_serving = True
        await batches.looks()
        assert batch.status is BatchStatus.VALIDATING
        batches.clock += 300
        await ended(batch)
        assert batch.status is BatchStatus.FAILED
        await batches.runner.close()

    asyncio.run(scenario())


def test_the_pauses_of_a_batch_that_waits_grow_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    pauses, sleep = list[float](), asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200, served=waiting_models)
        batches.models.names = {}
        monkeypatch.setattr(batch_requests, "POLL_SECONDS", 0.25)
        monkeypatch.setattr(batch_requests, "MAX_POLL_FACTOR", 10)
        monkeypatch.setattr(batch_requests.asyncio, "sleep", noted)  # type: ignore[attr-defined]
        batch = await batches.start(batch_lines(2))
        while len(pauses) < 8:
            await sleep(0)
        assert pauses[:7] == [0.25, 0.5, 1.0, 2.0, 2.5, 2.5, 2.5]
        batches.models.names = {"other": "other"}  # it waits for another reason
        before = len(pauses)
        while len(pauses) < before + 3:
            await sleep(0)
        assert 0.25 in pauses[before:]
        monkeypatch.undo()
        await batches.runner.cancel(batch)
        await ended(batch)
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_running_batch_goes_on_after_a_fault_while_responses_are_brought_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_requests, "SYNC_SECONDS", 0.001)
    num_syncs = 0

    def broken(self: ResponseJournal) -> None:
        nonlocal num_syncs
        num_syncs += 1
        raise RuntimeError("fault")

    async def scenario() -> None:
        async def script(line: BatchLine) -> int:
            await until(lambda: num_syncs >= 2)
            return 200

        monkeypatch.setattr(ResponseJournal, "sync", broken)
        batches = Batches(tmp_path, script)
        batch = await batches.start(batch_lines(1))
        await ended(batch)
        await batches.runner.close()
        assert batch.status is BatchStatus.COMPLETED and "are not on the disk yet" in caplog.text

    asyncio.run(scenario())


def held_models(models: ScriptedModels) -> BatchModels:
    """Return the models of a router that holds requests while it knows no model."""
    return BatchModels(
        models.resolve, has_models=lambda: bool(models.names), is_held=lambda: not models.names, wait_seconds=300.0
    )  # fmt: skip


@pytest.mark.parametrize("is_the_right_one", [False, True])
def test_requests_are_sent_where_they_are_held_and_their_model_is_kept_once_it_is_known(
    tmp_path: Path, is_the_right_one: bool
) -> None:  # fmt: skip
    async def scenario() -> None:
        is_started = asyncio.Event()

        async def script(line: BatchLine) -> Any:
            await is_started.wait()
            if line.custom_id == "r1" and is_the_right_one:
                await asyncio.Event().wait()
            return 200 if line.model in batches.models.names else NOT_FOUND

        batches = Batches(tmp_path, script, served=held_models)
        batches.models.names = {}
        batch = await batches.start(batch_lines(2))
        await until(lambda: batches.sent.total() == 2)
        assert batch.status is BatchStatus.IN_PROGRESS and not batch.to_object()["errors"]
        batches.models.names = {"fake": "the model"} if is_the_right_one else {"other": "other"}
        is_started.set()
        if is_the_right_one:
            await until(
                lambda: (
                    BatchStore(tmp_path / "batches", DiskUsage(1)).get("alice", "batch_1").models
                    == {"fake": "the model"}
                )
            )
        else:
            await until(lambda: bool(batch.model_problem))
            assert "made for the model 'fake': the model 'fake' is not served here" in shown_problem(batch)
            assert batch.status is BatchStatus.IN_PROGRESS and counts(batch) == (2, 0, 0)
        await batches.runner.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_cancelled_alone", [False, True])
def test_checks_end_with_their_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled_alone: bool
) -> None:  # fmt: skip
    begun = list[Any]()

    def endless(self: BatchFile, max_requests: int, max_models: int, is_stopped: Callable[[], bool]) -> Any:
        begun.append(self)
        while not is_stopped():
            time.sleep(0.001)

    async def scenario() -> None:
        monkeypatch.setattr(BatchFile, "check", endless)
        batches = Batches(tmp_path, lambda line: 200)
        many = [await batches.start(batch_lines(1), f"batch_{name}", name) for name in ("a", "b", "c")]
        await until(lambda: bool(begun))
        if is_cancelled_alone:
            for each in reversed(many):
                await batches.runner.cancel(each)
                await ended(each)
            assert {each.status for each in many} == {BatchStatus.CANCELLED}
        await batches.runner.close()
        assert len(begun) == 1
        left = BatchStore(tmp_path / "batches", DiskUsage(1)).unfinished()
        assert [each.status for each in left] == ([] if is_cancelled_alone else [BatchStatus.VALIDATING] * 3)

    asyncio.run(scenario())


def test_the_checks_of_one_tenant_do_not_delay_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    check, gate, order = BatchFile.check, threading.Event(), list[str]()

    def noted(self: BatchFile, *arguments: Any) -> Any:
        assert gate.wait(20)
        order.append(self._path.parent.name)
        return check(self, *arguments)

    async def scenario() -> None:
        monkeypatch.setattr(BatchFile, "check", noted)
        batches = Batches(tmp_path, lambda line: 200)
        many = [await batches.start(batch_lines(1), f"batch_{number}") for number in range(5)]
        other = await batches.start(batch_lines(1), "batch_other", "bob")
        for _ in range(20):
            await asyncio.sleep(0)
        gate.set()
        for each in (*many, other):
            await ended(each)
        await batches.runner.close()
        assert order == ["batch_0", "batch_other", *(f"batch_{number}" for number in range(1, 5))]

    asyncio.run(scenario())


def test_a_running_batch_keeps_no_names_of_its_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def script(line: BatchLine) -> int:
            if line.number > 400:
                await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, script, max_body_bytes=10_000)
        content = b"".join(batch_line(f"{number:04}{chr(0x1F600) * 500}") for number in range(500))
        batch = await batches.add(content, "batch_1")
        del content
        tracemalloc.start()
        try:
            batches.runner.start(batch)
            await until(lambda: batch.completed == 400)
            batches.sent.clear()
            gc.collect()
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held_bytes < 500_000, "the names have 1 MB"
        await batches.runner.close()

    asyncio.run(scenario())


def test_a_batch_that_was_accepted_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        monkeypatch.setattr(BatchFile, "check", None)
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await ended(loaded)
        await again.runner.close()
        assert loaded.status is BatchStatus.COMPLETED and counts(loaded) == (3, 3, 0)

    asyncio.run(scenario())


def test_a_batch_with_all_responses_needs_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ended between the last response and the outputs, and the next one has another model."""

    async def scenario() -> None:
        batches = Batches(tmp_path, lambda line: 200 if line.custom_id != "r1" else 400)
        save, gate = batches.store.save, asyncio.Event()

        async def slow(batch: StoredBatch) -> None:
            if batch.status is BatchStatus.FINALIZING:
                await gate.wait()
            await save(batch)

        monkeypatch.setattr(batches.store, "save", slow)
        batch = await batches.start(batch_lines(3))
        await until(lambda: batch.status is BatchStatus.FINALIZING)
        await batches.runner.close()
        again = Batches(tmp_path, lambda line: 200)
        again.models.names = {"other": "other"}
        [loaded] = again.store.unfinished()
        assert loaded.status is BatchStatus.IN_PROGRESS
        again.runner.start(loaded)
        await ended(loaded)
        await again.runner.close()
        assert loaded.status is BatchStatus.COMPLETED and counts(loaded) == (3, 2, 1) and not again.sent

    asyncio.run(scenario())


@pytest.mark.parametrize("is_known", [False, True])
def test_a_batch_of_an_earlier_version_is_counted_and_one_that_lost_requests_fails(
    tmp_path: Path, is_known: bool
) -> None:  # fmt: skip
    async def scenario() -> None:
        async def first(line: BatchLine) -> int:
            if line.custom_id != "r0":
                await asyncio.Event().wait()
            return 200

        batches = Batches(tmp_path, first)
        batch = await batches.start(batch_lines(4))
        await until(lambda: batch.completed == 1)
        await batches.runner.close()
        batches.store.requests_path(batch).write_bytes(batch_lines(3))
        batch.total = 4 if is_known else 0
        await batches.store.save(batch)
        again = Batches(tmp_path, lambda line: 200)
        [loaded] = again.store.unfinished()
        again.runner.start(loaded)
        await ended(loaded)
        await again.runner.close()
        assert set(again.entries(loaded.output_file_id)) == {"r0", "r1", "r2"} and again.sent.total() == 2
        if is_known:
            assert loaded.status is BatchStatus.FAILED and counts(loaded) == (4, 3, 0)
            assert loaded.errors[0]["message"] == "1 requests of the batch are not in its file any more"
        else:
            assert loaded.status is BatchStatus.COMPLETED and counts(loaded) == (3, 3, 0)

    asyncio.run(scenario())


def test_a_model_that_is_lost_for_a_moment_costs_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_requests, "LOST_SECONDS", 1e9)

    async def scenario() -> None:
        is_back = asyncio.Event()

        async def script(line: BatchLine) -> Any:
            if line.custom_id == "r1" and batches.sent["r1"] == 1:
                batches.models.names = {}
                return NOT_FOUND
            if not batches.models.names:
                await is_back.wait()
            return 200

        batches = Batches(tmp_path, script, num_requests=1)
        batch = await batches.start(batch_lines(3))
        await until(lambda: batches.sent["r1"] == 2)
        await batches.looks()
        assert not batch.model_problem
        batches.models.names = {"fake": "fake"}
        is_back.set()
        await ended(batch)
        await batches.runner.close()
        assert batch.status is BatchStatus.COMPLETED and batches.sent == {"r0": 1, "r1": 2, "r2": 1}

    asyncio.run(scenario())
