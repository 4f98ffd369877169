"""BatchState: the folder is opened once, when it is needed, and its unfinished batches go on."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import Unavailable
from chairlift.web.batch_api.batch_slots import BatchSlots
from chairlift.web.batch_api.batch_state import BatchState
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch
from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.batch_files.batch_run import BatchResponse
from support_batch_api import ScriptedModels, ScriptedRoom, batch_lines


def sender(tenant: str) -> Any:
    async def send(line: BatchLine) -> BatchResponse:
        return BatchResponse(200, tenant, {})

    return send


def state_of(path: Path | None) -> BatchState:
    return BatchState(
        FilesConfig(files_folder=path), 1000, BatchSlots(2, ScriptedRoom()), sender, ScriptedModels().served()
    )


def test_the_folder_is_opened_once_and_its_batches_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = tmp_path / "state"
        first = state_of(folder)
        assert not first.has_earlier_files
        opened, same = await asyncio.gather(first.open(), first.open())
        assert opened is same and first.has_earlier_files
        (tmp_path / "requests").write_bytes(batch_lines(3))
        await opened.batches.add(
            StoredBatch(id="batch_1", tenant="alice", endpoint="/v1/completions", input_file_id="file-1",
                        completion_window="24h", metadata={}, created_at=1, expires_at=2**40), tmp_path / "requests",
        )  # fmt: skip
        with pytest.raises(Unavailable, match="another server"):
            await state_of(folder).open()
        await first.close()
        await first.close()

        second = state_of(folder)
        assert second.has_earlier_files
        [batch] = (await second.open()).batches.of_tenant("alice")
        async with asyncio.timeout(20):
            while not batch.status.is_final:
                await asyncio.sleep(0.01)
        await second.close()
        assert BatchStore(folder / "batches", DiskUsage(1)).get("alice", "batch_1").status is BatchStatus.COMPLETED

    asyncio.run(scenario())


def test_a_state_that_was_never_used_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        for path in (None, tmp_path / "state"):
            state = state_of(path)
            state.abort_all()
            await state.close()
        temporary = state_of(None)
        path = (await temporary.open()).files._folder
        assert path.is_dir()
        await temporary.close()
        assert not path.exists() and list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


def test_a_folder_that_cannot_be_opened_can_be_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "state").write_bytes(b"a file")
        state = state_of(tmp_path / "state")
        assert not state.has_earlier_files
        with pytest.raises(Unavailable, match="the files of this server cannot be used"):
            await state.open()
        (tmp_path / "state").unlink()
        await state.open()
        await state.close()

    asyncio.run(scenario())


def test_what_is_closed_is_not_opened_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        for is_early in (False, True):
            state = state_of(tmp_path / "state")
            opening = asyncio.create_task(state.open())
            if not is_early:
                await opening
            await state.close()
            await asyncio.gather(opening, return_exceptions=True)
            with pytest.raises(Unavailable, match="takes nothing new"):
                await state.open()
        await state_of(tmp_path / "state").open()  # another one has the folder

    asyncio.run(scenario())


def test_a_state_that_is_closed_while_it_opens_runs_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        state = state_of(tmp_path / "state")
        read, is_reading, gate = state._read, threading.Event(), threading.Event()

        def slow() -> Any:
            is_reading.set()
            assert gate.wait(20)
            return read()

        monkeypatch.setattr(state, "_read", slow)
        opening = asyncio.create_task(state.open())
        while not is_reading.is_set():
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(state.close())
        await asyncio.sleep(0)
        gate.set()
        opened = await opening
        await closing
        assert not state._folder.is_open
        with pytest.raises(Unavailable):
            opened.runner.check_open()

    asyncio.run(scenario())
