"""A BatchRunner over the folder of a test, with a scripted sender, and what waits for its batches."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.web.batch_api import batch_requests, batch_runner, batch_slots
from chairlift.web.batch_api.batch_models import BatchModels
from chairlift.web.batch_api.batch_runner import BatchRunner
from chairlift.web.batch_api.batch_slots import BatchSlots
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.file_store import FileStore
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.batch_api.stored_batch import StoredBatch
from chairlift.web.batch_files import batch_run
from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.batch_files.batch_run import BatchResponse
from support_batch_api import ScriptedModels, ScriptedRoom

WINDOW = 86_400


class Batches:
    """A runner over the folder of a test, whose sender answers by `script`; `sent` counts what it has sent."""

    def __init__(
        self, path: Path, script: Callable[[BatchLine], Any], num_requests: int = 8,
        served: Callable[[ScriptedModels], BatchModels] = ScriptedModels.served, max_body_bytes: int = 1000,
    ) -> None:  # fmt: skip
        self.now, self.clock, self.room, self.models = 1000.0, 0.0, ScriptedRoom(), ScriptedModels()
        self.sent: Counter[str] = Counter()
        self.tenants: set[str] = set()
        self.usage = DiskUsage(10**9)
        self.files = FileStore(path / "files", FilesConfig(), self.usage)
        self.store = BatchStore(path / "batches", self.usage)
        self._script, self.slots = script, BatchSlots(num_requests, self.room)
        self.runner = BatchRunner(
            self.store, self.files, self.slots, self.sender, served(self.models),
            max_requests=num_requests, max_body_bytes=max_body_bytes, now=lambda: self.now,
            clock=lambda: self.clock,
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

    async def looks(self) -> None:
        """Wait until the batches have looked several times at whether they can go on."""
        before = self.room.num_looks
        await until(lambda: self.room.num_looks >= before + 20)

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


def counts(batch: StoredBatch) -> tuple[int, int, int]:
    return batch.total, batch.completed, batch.failed


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pauses of batches short."""
    monkeypatch.setattr(batch_slots, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(batch_run, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(batch_requests, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(batch_requests, "MAX_POLL_FACTOR", 1)
    monkeypatch.setattr(batch_requests, "LOST_SECONDS", 0.0)
    monkeypatch.setattr(batch_runner, "CLOCK_SECONDS", 0.001)
