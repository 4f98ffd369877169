"""BatchRunner: runs batches in the background, from the check of their requests to the files of their responses."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from chairlift.core.errors import ChairliftError, InvalidRequest, Unavailable
from chairlift.protocol.batches.file_fields import OUTPUT_PURPOSE
from chairlift.web.batch_api.batch_slots import BatchSlots
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.file_store import FileStore
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch
from chairlift.web.batch_files.batch_lines import BatchCheck, BatchFile, BatchLine
from chairlift.web.batch_files.batch_run import BatchProgress, BatchResponse, Sender, output_entry, run_batch_file
from chairlift.web.batch_files.output_journal import OutputJournal

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_REQUESTS = 50_000
"""Requests of one batch, as many as OpenAI's API takes."""

MAX_RUNNING_BATCHES = 64
"""Batches that run at the same time; the others wait for their turn in the order of their creation."""

MAX_RETRIES = 3
"""How often a request is sent again after an error of the server."""

BUSY_STATUSES = frozenset({429})
"""Statuses after which a request waits until the end of the batch's window."""

STORAGE_RETRY_SECONDS = 30.0
"""Seconds after which a batch goes on that a full disk has stopped."""


class BatchRunner:
    """Runs the batches of a store. Belongs to one event loop."""

    def __init__(
        self, store: BatchStore, files: FileStore, slots: BatchSlots, sender_of: Callable[[str], Sender], *,
        max_requests: int, max_body_bytes: int, now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """Prepare to run batches.

        Args:
            store: the batches.
            files: takes their outputs.
            slots: say when a request may begin.
            sender_of: returns what sends the requests of a tenant.
            max_requests: open requests of one batch, at most.
            max_body_bytes: largest body of a request.
            now: seconds since 1970.
        """
        self._store, self._files, self._slots, self._sender_of = store, files, slots, sender_of
        self._max_requests, self._max_body_bytes, self._now = max_requests, max_body_bytes, now
        self._running = asyncio.Semaphore(MAX_RUNNING_BATCHES)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: dict[str, asyncio.Event] = {}

    def start(self, batch: StoredBatch) -> None:
        """Run a batch that has not ended, from where it is."""
        self._cancelled[batch.id] = asyncio.Event()
        task = self._tasks[batch.id] = asyncio.create_task(self._run(batch), name=batch.id)
        task.add_done_callback(lambda _: (self._tasks.pop(batch.id), self._cancelled.pop(batch.id)))

    async def cancel(self, batch: StoredBatch) -> None:
        """Begin to cancel a batch: its open requests are aborted, and the responses so far become its output.

        A cancelled batch stays as it is. Raises InvalidRequest for one that has ended or is about to, and OSError.
        """
        if batch.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            return
        if batch.status not in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            raise InvalidRequest(f"a batch whose status is {batch.status} cannot be cancelled", param="batch_id")
        batch.enter(BatchStatus.CANCELLING, self._now())
        batch.ending = BatchStatus.CANCELLED
        if (cancelled := self._cancelled.get(batch.id)) is not None:
            cancelled.set()
        await _in_thread(self._store.save, batch)

    def abort_all(self) -> None:
        """Abort the open requests of all batches, which have no response then: a later start sends them again."""
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        """Stop all batches where they are. May be called more than once."""
        tasks = [*self._tasks.values()]
        self.abort_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, batch: StoredBatch) -> None:
        async with self._running:
            while not batch.status.is_final:
                try:
                    await self._advance(batch)
                    batch.storage_problem = ""
                except FileNotFoundError as error:
                    await self._fail(batch, "file_missing", f"a file of the batch is missing: {error.strerror}")
                except (OSError, Unavailable) as error:
                    if not batch.storage_problem:  # log only the first of a series of failures
                        log.warning("batch %s waits: its files cannot be written: %s", batch.id, error)
                    reason = error.message if isinstance(error, Unavailable) else error.strerror or str(error)
                    batch.storage_problem = (
                        f"the files of the batch cannot be written ({reason}); it goes on when they can"
                    )
                    await asyncio.sleep(STORAGE_RETRY_SECONDS)
                except ChairliftError as error:
                    await self._fail(batch, error.code, error.message)
                except Exception:
                    log.exception("internal error: batch %s has failed", batch.id)
                    await self._fail(batch, "internal_error", "internal error; the server's log has the reason")

    async def _fail(self, batch: StoredBatch, code: str, message: str) -> None:
        batch.add_error(code, message)
        batch.enter(BatchStatus.FAILED, self._now())
        try:
            await self._save(batch)
        except OSError as error:
            log.warning("the state of batch %s cannot be written: %s", batch.id, error)

    async def _advance(self, batch: StoredBatch) -> None:
        """Take a batch to its end. Raises OSError and Unavailable; then it can be called again."""
        if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            check = await _in_thread(self._requests(batch).check)
            if batch.status is BatchStatus.VALIDATING:
                await self._accept_or_fail(batch, check)
            if batch.status is BatchStatus.IN_PROGRESS:
                await self._send_requests(batch, check.custom_ids)
        if batch.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
            await _in_thread(self._write_outputs, batch)
            await self._end(batch, batch.ending)

    async def _accept_or_fail(self, batch: StoredBatch, check: BatchCheck) -> None:
        num_requests = len(check.custom_ids)
        batch.errors.clear()  # of an attempt whose state could not be written
        for problem in check.problems:
            batch.add_error("invalid_line", problem.message, problem.number)
        if check.num_problems > len(check.problems):
            batch.add_error("invalid_line", f"{check.num_problems - len(check.problems)} more lines are invalid")
        if not check.num_problems and not num_requests:
            batch.add_error("empty_file", "the file has no requests")
        if num_requests > MAX_REQUESTS:
            batch.add_error("too_many_requests", f"the file has {num_requests} requests, the limit is {MAX_REQUESTS}")
        batch.total = 0 if batch.errors else num_requests
        if batch.errors:
            await self._end(batch, BatchStatus.FAILED)
        else:
            batch.enter(BatchStatus.IN_PROGRESS, self._now())
            await self._save(batch)

    async def _end(self, batch: StoredBatch, status: BatchStatus) -> None:
        """Come to a final state, which clients see once it is written. Raises OSError; then the state is as before."""
        now = self._now()
        ended = replace(batch, times=dict(batch.times))
        ended.enter(status, now)
        await self._save(ended)
        await _in_thread(self._store.remove_work, batch)
        batch.enter(status, now)

    async def _send_requests(self, batch: StoredBatch, custom_ids: tuple[str, ...]) -> None:
        """Send the requests without a response, until all have one, the batch is cancelled, or its window ends."""
        journal = await _in_thread(OutputJournal, self._store.journal_path(batch), custom_ids)
        with journal:
            batch.total = len(custom_ids)
            _count(batch, BatchProgress(len(custom_ids), len(journal.done), journal.num_errors))
            sending = asyncio.create_task(run_batch_file(
                self._requests(batch), len(custom_ids), journal, self._sender_of(batch.tenant),
                max_concurrent=self._max_requests, max_retries=MAX_RETRIES, busy_statuses=BUSY_STATUSES,
                slot=self._slots.slot, on_progress=lambda progress: _count_response(batch, progress),
            ))  # fmt: skip
            cancelling = asyncio.create_task(self._cancelled[batch.id].wait())
            seconds = max(0.0, batch.expires_at - self._now())
            try:
                await asyncio.wait({sending, cancelling}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                is_complete = sending.done()
            finally:
                for task in (sending, cancelling):
                    task.cancel()
                await asyncio.gather(sending, cancelling, return_exceptions=True)
            if is_complete:
                sending.result()
        if batch.status is BatchStatus.IN_PROGRESS:
            batch.ending = BatchStatus.COMPLETED if is_complete else BatchStatus.EXPIRED
            batch.enter(BatchStatus.FINALIZING, self._now())
            await self._save(batch)

    def _write_outputs(self, batch: StoredBatch) -> None:
        """Write the responses and the errors of a batch as files. Raises OSError and Unavailable."""
        with self._files.begin(is_limited=False) as outputs, self._files.begin(is_limited=False) as errors:
            answered: set[str] = set()
            batch.completed = batch.failed = 0
            for line, entry in _journal_lines(self._store.journal_path(batch)):
                answered.add(entry["custom_id"])
                if (entry["response"] or {}).get("status_code", 0) // 100 == 2:
                    batch.completed += 1
                    outputs.write(line)
                else:
                    batch.failed += 1
                    errors.write(line)
            for expired in self._requests(batch) if batch.ending is BatchStatus.EXPIRED else ():
                if expired.custom_id not in answered:
                    batch.failed += 1
                    errors.write(orjson.dumps(_expired_entry(expired)) + b"\n")
            for new_file, kind in ((outputs, "output"), (errors, "error")):
                if new_file.num_bytes:
                    file_id = _output_file_id(batch, kind)
                    new_file.commit(batch.tenant, f"{batch.id}_{kind}.jsonl", OUTPUT_PURPOSE, file_id)
                    setattr(batch, f"{kind}_file_id", file_id)

    async def _save(self, batch: StoredBatch) -> None:
        await _in_thread(self._store.save, batch)

    def _requests(self, batch: StoredBatch) -> BatchFile:
        return BatchFile(self._store.requests_path(batch), (batch.endpoint,), self._max_body_bytes)


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run some work in a thread, and wait for its end also when the task is cancelled: it uses the folder."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _count(batch: StoredBatch, progress: BatchProgress) -> None:
    batch.completed, batch.failed = progress.done - progress.failed, progress.failed


def _count_response(batch: StoredBatch, progress: BatchProgress) -> None:
    _count(batch, progress)
    batch.storage_problem = ""  # it was written


def _journal_lines(path: Path) -> Iterable[tuple[bytes, dict[str, Any]]]:
    """Yield the whole lines of a journal, none where it does not exist. Raises OSError."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if line.endswith(b"\n"):  # the process ended within another line
                yield line, orjson.loads(line)


def _expired_entry(line: BatchLine) -> dict[str, Any]:
    """Return the line of the error file for a request without a response at the end of the window."""
    error = {"code": "batch_expired", "message": "the batch expired before this request had a response"}
    return output_entry(line, BatchResponse(0, "", "")) | {"error": error}


def _output_file_id(batch: StoredBatch, kind: str) -> str:
    """Return the id of an output, the same each time: what an interruption has left is replaced."""
    return f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:24]}"
