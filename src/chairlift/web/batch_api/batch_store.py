"""BatchStore: the batches of a folder, each tenant's own, with the requests and the responses of those that run."""

import contextlib
import logging
import os
import shutil
import threading
from dataclasses import asdict, fields
from pathlib import Path

import orjson

from chairlift.core.errors import NotFound, RateLimited
from chairlift.web.batch_api.private_folder import storage_error, write_atomically
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch

log = logging.getLogger(__name__)

MAX_OPEN_BATCHES = 100
"""Batches of a tenant that have not ended, at most."""

MAX_BATCHES = 10_000
"""Batches of all tenants, at most: the oldest that have ended are forgotten."""

SHOWN_ID_CHARS = 80
FULL_RETRY_SECONDS = 60.0


class BatchStore:
    """The batches of a folder. Calls that change a batch's folder block for short accesses of the disk."""

    def __init__(self, folder: Path) -> None:
        """Read what the folder has. Raises Unavailable."""
        self._folder = folder
        self._lock = threading.Lock()  # of writes
        self._batches: dict[str, StoredBatch] = {}
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._load()
        except OSError as error:
            raise storage_error(error) from error

    def check_room(self, tenant: str) -> None:
        """Raise RateLimited unless the tenant may have another batch."""
        num_open = sum(not each.status.is_final for each in self.of_tenant(tenant))
        if num_open >= MAX_OPEN_BATCHES:
            raise RateLimited(
                f"{num_open} batches have not ended, the limit is {MAX_OPEN_BATCHES}", retry_after=FULL_RETRY_SECONDS
            )

    def add(self, batch: StoredBatch, input_path: Path) -> None:
        """Add a batch whose requests are in a file, which may be deleted then. Raises Unavailable."""
        folder = self._folder / batch.id
        try:
            folder.mkdir(mode=0o700)
            try:
                os.link(input_path, self.requests_path(batch))
            except OSError:  # another file system, or one without links
                shutil.copyfile(input_path, self.requests_path(batch))
            self.save(batch)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise storage_error(error) from error
        self._batches[batch.id] = batch
        self._forget_oldest()

    def save(self, batch: StoredBatch) -> None:
        """Write the state of a batch. Raises OSError."""
        with self._lock:
            values = {**asdict(batch), "storage_problem": ""}
            write_atomically(self._folder / batch.id / "batch.json", orjson.dumps(values))

    def get(self, tenant: str, batch_id: str) -> StoredBatch:
        """Return a tenant's batch. Raises NotFound."""
        batch = self._batches.get(batch_id)
        if batch is None or batch.tenant != tenant:
            shown = "".join(char for char in batch_id[:SHOWN_ID_CHARS] if " " < char <= "~")
            raise NotFound(f"there is no batch {shown}; it may be of another server", param="batch_id")
        return batch

    def of_tenant(self, tenant: str) -> list[StoredBatch]:
        """Return a tenant's batches, the oldest first."""
        return [each for each in self._batches.values() if each.tenant == tenant]

    def unfinished(self) -> list[StoredBatch]:
        """Return the batches of all tenants that have not ended."""
        return [each for each in self._batches.values() if not each.status.is_final]

    def requests_path(self, batch: StoredBatch) -> Path:
        """Return where the requests of a batch are."""
        return self._folder / batch.id / "requests.jsonl"

    def journal_path(self, batch: StoredBatch) -> Path:
        """Return where the responses of a batch are while it runs."""
        return self._folder / batch.id / "responses.jsonl"

    def remove_work(self, batch: StoredBatch) -> None:
        """Remove the requests and responses of a batch that has ended."""
        for path in (self.requests_path(batch), self.journal_path(batch)):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _forget_oldest(self) -> None:
        for batch in [each for each in self._batches.values() if each.status.is_final]:
            if len(self._batches) <= MAX_BATCHES:
                return
            del self._batches[batch.id]
            shutil.rmtree(self._folder / batch.id, ignore_errors=True)

    def _load(self) -> None:
        names = [field.name for field in fields(StoredBatch)]
        batches: list[StoredBatch] = []
        for folder in self._folder.glob("batch_*"):
            try:
                values = orjson.loads((folder / "batch.json").read_bytes())
                batch = StoredBatch(**{name: values[name] for name in names})
                batch.status, batch.ending = BatchStatus(batch.status), BatchStatus(batch.ending)
            except FileNotFoundError:  # the server ended before it had answered
                shutil.rmtree(folder, ignore_errors=True)
                continue
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                log.warning("%s has no description of a batch; it is left as it is", folder)
                continue
            batches.append(batch)
            if batch.status.is_final:  # the server ended before it had removed them
                self.remove_work(batch)
        self._batches = {each.id: each for each in sorted(batches, key=lambda each: (each.created_at, each.id))}
