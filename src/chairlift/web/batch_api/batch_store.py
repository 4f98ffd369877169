"""BatchStore: the batches of a folder, each tenant's own, with the requests and the responses of those that run."""

import asyncio
import contextlib
import logging
import os
import shutil
from collections import Counter
from pathlib import Path

from chairlift.core.errors import NotFound, RateLimited
from chairlift.protocol.field_check import shown_id
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.in_thread import in_thread
from chairlift.web.batch_api.private_folder import storage_error, write_atomically
from chairlift.web.batch_api.stored_batch import StoredBatch

log = logging.getLogger(__name__)

MAX_OPEN_BATCHES = 100
"""Batches of a tenant that have not ended, at most."""

MAX_BATCHES = 10_000
"""Batches of all tenants, at most: of the tenant with the most, the oldest that has ended is forgotten."""

FULL_RETRY_SECONDS = 60.0


class BatchStore:
    """The batches of a folder. Made in a thread, then it belongs to one event loop; threads only touch the disk."""

    def __init__(self, folder: Path, usage: DiskUsage) -> None:
        """Read what the folder has; `usage` counts the bytes of requests and responses. Raises Unavailable."""
        self._folder, self._usage = folder, usage
        self._batches: dict[str, StoredBatch] = {}
        self._num_added: Counter[str] = Counter()  # batches of each tenant that are being written
        self._writing = asyncio.Lock()  # so that an older state never replaces a newer one
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._load()
        except OSError as error:
            raise storage_error(error) from error
        self._next_number = max((each.number for each in self._batches.values()), default=0) + 1

    def check_room(self, tenant: str) -> None:
        """Raise RateLimited unless the tenant may have another batch."""
        num_open = sum(not each.status.is_final for each in self.of_tenant(tenant)) + self._num_added[tenant]
        if num_open >= MAX_OPEN_BATCHES:
            raise RateLimited(
                f"{num_open} batches have not ended, the limit is {MAX_OPEN_BATCHES}", retry_after=FULL_RETRY_SECONDS
            )
        if problem := self._usage.problem(tenant):
            raise RateLimited(problem, retry_after=FULL_RETRY_SECONDS)

    async def add(self, batch: StoredBatch, input_path: Path) -> None:
        """Add a batch whose requests are in a file, which may be deleted then.

        Raises RateLimited, FileNotFoundError where the file is gone, and Unavailable. Then nothing is stored.
        """
        self.check_room(batch.tenant)
        batch.number, self._next_number = self._next_number, self._next_number + 1
        self._num_added[batch.tenant] += 1
        try:
            await in_thread(self._write_new, batch, input_path, batch.to_json())
            await self._forget_oldest()
        except BaseException:
            await in_thread(self._remove_folder, batch.id)
            raise
        finally:
            self._num_added[batch.tenant] -= 1
        self._batches[batch.id] = batch  # without a pause until the caller has it: it must begin

    async def save(self, batch: StoredBatch) -> None:
        """Write the state of a batch. Raises OSError."""
        async with self._writing:
            await in_thread(write_atomically, self._described(batch), batch.to_json())

    def get(self, tenant: str, batch_id: str) -> StoredBatch:
        """Return a tenant's batch. Raises NotFound."""
        batch = self._batches.get(batch_id)
        if batch is None or batch.tenant != tenant:
            raise NotFound(f"there is no batch {shown_id(batch_id)}; it may be of another server", param="batch_id")
        return batch

    def of_tenant(self, tenant: str) -> list[StoredBatch]:
        """Return a tenant's batches, the oldest first."""
        own = [each for each in self._batches.values() if each.tenant == tenant]
        return sorted(own, key=lambda each: each.number)  # of two that are written at once the later may come first

    def unfinished(self) -> list[StoredBatch]:
        """Return the batches of all tenants that have not ended."""
        return [each for each in self._batches.values() if not each.status.is_final]

    def requests_path(self, batch: StoredBatch) -> Path:
        """Return where the requests of a batch are."""
        return self._folder / batch.id / "requests.jsonl"

    def responses_path(self, batch: StoredBatch) -> Path:
        """Return where the responses of a status of 2xx are while a batch runs."""
        return self._folder / batch.id / "responses.jsonl"

    def errors_path(self, batch: StoredBatch) -> Path:
        """Return where the other responses are while a batch runs."""
        return self._folder / batch.id / "errors.jsonl"

    def count(self, batch: StoredBatch) -> None:
        """Count the bytes of a running batch. Any thread may call it."""
        for path in self._work_paths(batch):
            with contextlib.suppress(OSError):
                status = path.stat()
                self._usage.set(f"{batch.id}/{path.name}", batch.tenant, status.st_size, (status.st_dev, status.st_ino))

    def remove_work(self, batch: StoredBatch) -> None:
        """Remove the requests and responses of a batch that has ended. Any thread may call it."""
        for path in self._work_paths(batch):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            self._usage.remove(f"{batch.id}/{path.name}")

    def _described(self, batch: StoredBatch) -> Path:
        return self._folder / batch.id / "batch.json"

    def _work_paths(self, batch: StoredBatch) -> tuple[Path, ...]:
        return self.requests_path(batch), self.responses_path(batch), self.errors_path(batch)

    def _write_new(self, batch: StoredBatch, input_path: Path, description: bytes) -> None:
        try:
            (self._folder / batch.id).mkdir(mode=0o700)
            try:
                os.link(input_path, self.requests_path(batch))
            except FileNotFoundError:
                raise
            except OSError:  # another file system, or one without links
                shutil.copyfile(input_path, self.requests_path(batch))
            write_atomically(self._described(batch), description)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(error) from error
        self.count(batch)

    def _remove_folder(self, batch_id: str) -> None:
        shutil.rmtree(self._folder / batch_id, ignore_errors=True)
        for name in ("requests.jsonl", "responses.jsonl", "errors.jsonl"):
            self._usage.remove(f"{batch_id}/{name}")

    async def _forget_oldest(self) -> None:
        """Make room for the batches that are being added."""
        while len(self._batches) + self._num_added.total() > MAX_BATCHES:
            if (batch := self._next_forgotten()) is None:
                return
            del self._batches[batch.id]
            await in_thread(self._remove_folder, batch.id)

    def _next_forgotten(self) -> StoredBatch | None:
        """Return the oldest ended batch of the tenant with the most batches that has one."""
        num_batches = self._num_added + Counter(each.tenant for each in self._batches.values())
        ended = [each for each in self._batches.values() if each.status.is_final]
        return max(ended, key=lambda each: num_batches[each.tenant], default=None)  # the first of equals

    def _load(self) -> None:
        batches: list[StoredBatch] = []
        for folder in self._folder.glob("batch_*"):
            try:
                batch = StoredBatch.from_json((folder / "batch.json").read_bytes())
                if batch.id != folder.name:
                    raise ValueError("it has the id of another batch")
            except FileNotFoundError:  # the server ended before it had answered
                shutil.rmtree(folder, ignore_errors=True)
                continue
            except (OSError, ValueError) as error:
                log.warning("%s has no description of a batch; it is left as it is: %s", folder, error)
                continue
            batches.append(batch)
            if batch.status.is_final:  # the server ended before it had removed them
                self.remove_work(batch)
            else:
                self.count(batch)
        batches.sort(key=lambda each: (each.number, each.created_at, each.id))
        self._batches = {each.id: each for each in batches}
