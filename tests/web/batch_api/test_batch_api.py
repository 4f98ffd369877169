"""BatchApi: requests of batches are sent as their tenant, with a low priority, through the routes that clients use."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.load_report import ReplicaState
from chairlift.web.access_log import AccessRecord
from chairlift.web.batch_api import batch_api
from chairlift.web.batch_api.batch_api import BATCH_PRIORITY, BatchApi
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.request_info import request_info
from chairlift.web.send_response import send_object
from chairlift.web.service.http_config import HttpConfig
from support_batch_api import ScriptedModels, ScriptedRoom
from support_translation import ready_lifecycle


class Recorder:
    """An application that keeps what it receives."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.tenants: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append(json.loads((await receive())["body"]))
        self.tenants.append(request_info(scope).authenticated.tenant)
        if self.bodies[-1].get("fails"):
            raise RuntimeError("fault")
        await send_object(send, {})


def api(lifecycle: Lifecycle, app: Any, path: Path | None = None, records: Any = None) -> BatchApi:
    config = HttpConfig(files=FilesConfig(files_folder=path))
    return BatchApi(
        config, lifecycle, {"/a": app, "/b": app}, ScriptedRoom(), ScriptedModels().served(), on_response=records,
        prioritized_paths=("/a",),
    )  # fmt: skip


def test_requests_have_their_tenant_a_low_priority_and_are_recorded() -> None:
    async def scenario() -> None:
        app, records = Recorder(), list[AccessRecord]()
        send = api(ready_lifecycle(), app, records=records.append)._sender_of("alice")
        for path, body in (("/a", {}), ("/a", {"priority": 5}), ("/a", {"priority": None}), ("/b", {})):
            response = await send(BatchLine(1, "x", path, json.dumps(body).encode()))
            assert response.status == 200 and response.request_id.startswith("req-")
        assert app.bodies == [{"priority": BATCH_PRIORITY}, {"priority": 5}, {"priority": BATCH_PRIORITY}, {}]
        assert app.tenants == ["alice"] * 4 and [each.tenant for each in records] == ["alice"] * 4
        assert [each.route for each in records] == ["/a", "/a", "/a", "/b"]
        failed = await send(BatchLine(1, "x", "/b", b'{"fails": true}'))
        assert failed.status == 500 and failed.body["error"]["code"] == "internal_error"

    asyncio.run(scenario())


def test_an_earlier_folder_is_opened_once_the_service_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_api, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(batch_api, "OPEN_RETRY_SECONDS", 0.005)

    async def scenario() -> None:
        lifecycle = Lifecycle()
        unused = api(lifecycle, Recorder(), tmp_path / "none")
        await unused.resume()
        assert not (tmp_path / "none").exists()
        (tmp_path / "state").mkdir()
        earlier = api(lifecycle, Recorder(), tmp_path / "state")
        task = asyncio.create_task(earlier.resume())
        await asyncio.sleep(0.03)
        assert not task.done()
        lifecycle.mark_started(lambda: ReplicaState.READY)
        await task
        assert (tmp_path / "state" / "batches").is_dir()
        second = api(lifecycle, Recorder(), tmp_path / "state")
        resuming = asyncio.create_task(second.resume())
        await asyncio.sleep(0.03)
        assert not resuming.done(), "the folder is that of another server, which may end"
        await earlier.close()
        await asyncio.wait_for(resuming, 20)
        await second.close()

    asyncio.run(scenario())
    assert [each.getMessage()[:32] for each in caplog.records] == ["files and batches are not served"]


def test_a_fault_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """The process ends when a task in the background fails, and the next start would fail, too."""
    monkeypatch.setattr(batch_api, "OPEN_RETRY_SECONDS", 0.005)
    num_opened = 0

    async def fail() -> None:
        nonlocal num_opened
        num_opened += 1
        if num_opened < 3:
            raise TypeError("fault")

    async def scenario() -> None:
        served = api(ready_lifecycle(), Recorder(), tmp_path)
        monkeypatch.setattr(served._state, "open", fail)
        await asyncio.wait_for(served.resume(), 20)

    asyncio.run(scenario())
    assert num_opened == 3 and caplog.text.count("internal error: files and batches are not served") == 1
