"""BatchRunner: runs batches in the background, from the check of their requests to the files of their responses."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from chairlift.core.errors import ChairliftError, InvalidRequest, Unavailable
from chairlift.web.batch_api.batch_models import BatchModels
from chairlift.web.batch_api.batch_outputs import BatchOutputs, write_outputs
from chairlift.web.batch_api.batch_slots import BatchSlots
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.file_store import FileStore
from chairlift.web.batch_api.in_thread import in_thread
from chairlift.web.batch_api.response_journal import ResponseJournal
from chairlift.web.batch_api.running_places import RunningPlaces
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch
from chairlift.web.batch_files.batch_lines import BatchCheck, BatchFile
from chairlift.web.batch_files.batch_run import BatchProgress, Sender, run_batch_file

log = logging.getLogger(__name__)

MAX_REQUESTS = 50_000
"""Requests of one batch, as many as OpenAI's API takes."""

MAX_RETRIES = 3
"""How often a request is sent again after an error of the server."""

STORAGE_RETRY_SECONDS = 30.0
"""Seconds after which a batch goes on that a full disk has stopped."""

POLL_SECONDS = 0.2
"""Seconds between two looks at whether the models of a batch are served."""

SYNC_SECONDS = 5.0
"""Seconds between two times at which responses are brought to the disk: a power failure takes later ones."""


class BatchRunner:
    """Runs the batches of a store. Belongs to one event loop."""

    def __init__(
        self, store: BatchStore, files: FileStore, slots: BatchSlots, sender_of: Callable[[str], Sender],
        models: BatchModels, *, max_requests: int, max_body_bytes: int, now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """Prepare to run batches.

        Args:
            store: the batches.
            files: takes their outputs.
            slots: say when a request may begin.
            sender_of: returns what sends the requests of a tenant.
            models: the models that requests may name.
            max_requests: open requests of one batch, at most.
            max_body_bytes: largest body of a request.
            now: seconds since 1970.
        """
        self._store, self._files, self._slots, self._sender_of = store, files, slots, sender_of
        self._models = models
        self._max_requests, self._max_body_bytes, self._now = max_requests, max_body_bytes, now
        self._places = RunningPlaces()
        self._checks = ThreadPoolExecutor(1, "batch check")  # one file at a time: a check takes the processor
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: dict[str, asyncio.Event] = {}
        self._ending: set[str] = set()

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
        is_open = batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
        if not is_open or batch.id in self._ending:
            shown = f"is {batch.status}" if not is_open else "changes to a final one"
            raise InvalidRequest(f"a batch whose status {shown} cannot be cancelled", param="batch_id")
        batch.enter(BatchStatus.CANCELLING, self._now())
        batch.ending = BatchStatus.CANCELLED
        if (cancelled := self._cancelled.get(batch.id)) is not None:
            cancelled.set()
        await self._store.save(batch)

    def abort_all(self) -> None:
        """Abort the open requests of all batches, which have no response then: a later start sends them again."""
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        """Stop all batches where they are. May be called more than once."""
        tasks = [*self._tasks.values()]
        self.abort_all()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._checks.shutdown(wait=False)

    async def _run(self, batch: StoredBatch) -> None:
        has_place = False
        if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):  # the others only write their outputs
            has_place = await self._until_cancelled_or_expired(batch, self._places.take(batch.tenant))
        try:
            while not batch.status.is_final:
                try:
                    await self._advance(batch, has_place=has_place)
                    batch.storage_problem = ""
                except FileNotFoundError as error:
                    await self._fail(batch, "file_missing", f"a file of the batch is missing: {error.strerror}")
                except (OSError, Unavailable) as error:
                    await self._wait_for_storage(batch, error)
                except ChairliftError as error:
                    await self._fail(batch, error.code, error.message)
                except Exception:
                    log.exception("internal error: batch %s has failed", batch.id)
                    await self._fail(batch, "internal_error", "internal error; the server's log has the reason")
        finally:
            if has_place:
                self._places.release(batch.tenant)

    async def _until_cancelled_or_expired(self, batch: StoredBatch, work: Awaitable[object]) -> bool:
        """Wait for some work; returns False where the batch is cancelled or its window ends before. Raises as it."""
        working = asyncio.ensure_future(work)
        cancelling = asyncio.create_task(self._cancelled[batch.id].wait())
        try:
            seconds = max(0.0, batch.expires_at - self._now())
            await asyncio.wait({working, cancelling}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            is_done = working.done()
        finally:
            for task in (working, cancelling):
                task.cancel()
            await asyncio.gather(working, cancelling, return_exceptions=True)
        if is_done:
            working.result()
        return is_done

    async def _wait_for_storage(self, batch: StoredBatch, error: OSError | Unavailable) -> None:
        if not batch.storage_problem:  # log only the first of a series of failures
            log.warning("batch %s waits: its files cannot be written: %s", batch.id, error)
        reason = error.message if isinstance(error, Unavailable) else error.strerror or str(error)
        batch.storage_problem = f"the files of the batch cannot be written ({reason}); it goes on when they can"
        await asyncio.sleep(STORAGE_RETRY_SECONDS)

    async def _fail(self, batch: StoredBatch, code: str, message: str) -> None:
        """Let a batch fail; the responses that it has become its outputs where they can be written."""
        batch.add_error(code, message)
        outputs = BatchOutputs(batch.total, batch.completed, batch.failed)
        try:
            outputs = await in_thread(write_outputs, self._store, self._files, batch, None)
        except (OSError, Unavailable) as error:
            log.warning("the outputs of batch %s cannot be written: %s", batch.id, error)
        try:
            await self._end(batch, BatchStatus.FAILED, outputs)
        except OSError as error:
            log.warning("the state of batch %s cannot be written: %s", batch.id, error)
            outputs.assign(batch)
            batch.enter(BatchStatus.FAILED, self._now())

    async def _advance(self, batch: StoredBatch, *, has_place: bool) -> None:
        """Take a batch to its end. Raises OSError and Unavailable; then it can be called again."""
        if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS) and not has_place:
            await self._finalize(batch, BatchStatus.EXPIRED)
        if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            check = await in_thread(self._requests(batch).check, MAX_REQUESTS, executor=self._checks)
            if batch.status is BatchStatus.VALIDATING:
                await self._accept_or_fail(batch, check)
            if batch.status is BatchStatus.IN_PROGRESS:
                await self._send_requests(batch, check)
        if batch.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
            expired = self._requests(batch) if batch.ending is BatchStatus.EXPIRED else None
            outputs = await in_thread(write_outputs, self._store, self._files, batch, expired, MAX_REQUESTS)
            await self._end(batch, batch.ending, outputs)

    async def _accept_or_fail(self, batch: StoredBatch, check: BatchCheck) -> None:
        num_requests = len(check.custom_ids)
        batch.errors.clear()  # of an attempt whose state could not be written
        batch.models.clear()
        for problem in check.problems:
            batch.add_error("invalid_line", problem.message, problem.number)
        if (num_more := check.num_problems - len(check.problems)) > 0:
            is_whole = check.num_problems <= MAX_REQUESTS  # else the check has ended there
            shown = f"{num_more} more" if is_whole else f"{num_more} or more other"
            batch.add_error("invalid_line", f"{shown} lines are invalid")
        if not check.num_problems and not num_requests:
            batch.add_error("empty_file", "the file has no requests")
        if num_requests > MAX_REQUESTS:
            batch.add_error("too_many_requests", f"the file has more than {MAX_REQUESTS} requests, which is the limit")
        if not batch.errors:
            is_ready = await self._until_cancelled_or_expired(batch, self._until_ready())
            if batch.status is not BatchStatus.VALIDATING or not is_ready:
                await self._finalize(batch, BatchStatus.EXPIRED)
                return
            self._models.accept(batch, check.models)
        if batch.errors:
            await self._end(batch, BatchStatus.FAILED, BatchOutputs(0, 0, 0))
        else:
            await self._accept(batch, num_requests)

    async def _accept(self, batch: StoredBatch, num_requests: int) -> None:
        """Come to IN_PROGRESS, once it is written for which models. Raises OSError; then the state is as before."""
        now = self._now()
        accepted = replace(batch, total=num_requests, times=dict(batch.times))
        accepted.enter(BatchStatus.IN_PROGRESS, now)
        await self._store.save(accepted)
        batch.total = num_requests
        if batch.status is BatchStatus.VALIDATING:  # it is not cancelled meanwhile
            batch.enter(BatchStatus.IN_PROGRESS, now)

    async def _finalize(self, batch: StoredBatch, ending: BatchStatus) -> None:
        """Begin to end a batch, unless it is cancelled. Raises OSError."""
        if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            batch.ending = ending
            batch.enter(BatchStatus.FINALIZING, self._now())
            await self._store.save(batch)

    async def _end(self, batch: StoredBatch, status: BatchStatus, outputs: BatchOutputs) -> None:
        """Come to a final state, which clients see once it is written. Raises OSError; then the state is as before."""
        now = self._now()
        ended = replace(batch, times=dict(batch.times))
        outputs.assign(ended)
        ended.enter(status, now)
        self._ending.add(batch.id)  # from here on it cannot be cancelled
        try:
            await self._store.save(ended)
            await in_thread(self._store.remove_work, batch)
            outputs.assign(batch)
            batch.enter(status, now)
        finally:
            self._ending.discard(batch.id)

    async def _send_requests(self, batch: StoredBatch, check: BatchCheck) -> None:
        """Send the requests without a response, until all have one, the batch is cancelled, or its window ends."""
        paths = self._store.responses_path(batch), self._store.errors_path(batch)
        journal = await in_thread(ResponseJournal, *paths)
        try:
            batch.total = len(check.custom_ids)
            _count(batch, BatchProgress(batch.total, len(journal.done), journal.num_errors))
            syncing = asyncio.create_task(self._keep_on_disk(batch, journal))
            try:
                is_complete = await self._until_cancelled_or_expired(batch, self._send_when_served(batch, journal))
            finally:
                syncing.cancel()
                await asyncio.gather(syncing, return_exceptions=True)
                batch.model_problem = ""
        finally:
            await in_thread(journal.close)
        await self._finalize(batch, BatchStatus.COMPLETED if is_complete else BatchStatus.EXPIRED)

    async def _send_when_served(self, batch: StoredBatch, journal: ResponseJournal) -> None:
        while True:
            await self._until_ready()
            batch.model_problem = self._models.problem(batch)
            if not batch.model_problem:
                break
            await asyncio.sleep(POLL_SECONDS)
        await run_batch_file(
            self._requests(batch), batch.total, journal, self._sender_of(batch.tenant),
            max_concurrent=self._max_requests, max_retries=MAX_RETRIES, refused_statuses=(),
            slot=self._slots.queue(batch.tenant).slot, on_progress=lambda progress: _count_response(batch, progress),
            on_write_error=partial(self._wait_for_storage, batch),
        )  # fmt: skip

    async def _until_ready(self) -> None:
        while not self._slots.room.is_ready():
            await asyncio.sleep(POLL_SECONDS)

    async def _keep_on_disk(self, batch: StoredBatch, journal: ResponseJournal) -> None:
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            try:
                await in_thread(journal.sync)
            except OSError as error:
                log.warning("the responses of batch %s are not on the disk yet: %s", batch.id, error)
            await in_thread(self._store.count, batch)

    def _requests(self, batch: StoredBatch) -> BatchFile:
        return BatchFile(self._store.requests_path(batch), (batch.endpoint,), self._max_body_bytes)


def _count(batch: StoredBatch, progress: BatchProgress) -> None:
    batch.completed, batch.failed = progress.done - progress.failed, progress.failed


def _count_response(batch: StoredBatch, progress: BatchProgress) -> None:
    _count(batch, progress)
    batch.storage_problem = ""  # it was written
