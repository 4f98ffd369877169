"""BatchRunner: runs batches in the background, from the check of their requests to the files of their responses."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from chairlift.core.errors import ChairliftError, InvalidRequest, Unavailable
from chairlift.web.batch_api.batch_models import BatchModels
from chairlift.web.batch_api.batch_outputs import BatchOutputs, write_outputs
from chairlift.web.batch_api.batch_requests import MAX_REQUESTS, BatchRequests
from chairlift.web.batch_api.batch_slots import BatchSlots
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.file_store import FileStore
from chairlift.web.batch_api.in_thread import in_thread, stoppable_in_thread
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch
from chairlift.web.batch_api.wait_for_end import wait_for_end
from chairlift.web.batch_files.batch_lines import BatchFile
from chairlift.web.batch_files.batch_run import Sender
from chairlift.web.lifecycle import leaving_error

log = logging.getLogger(__name__)

STORAGE_RETRY_SECONDS = 30.0
"""Seconds after which a batch goes on that a full disk has stopped."""

CLOCK_SECONDS = 10.0
"""Seconds between two looks at the clock, which may be set, for the end of a window."""

OUTPUT_THREADS = 2
"""Threads that read the responses, and the requests of an expired batch, for the outputs."""

OPEN_STATUSES = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


class BatchRunner:
    """Runs the batches of a store. Belongs to one event loop."""

    def __init__(
        self, store: BatchStore, files: FileStore, slots: BatchSlots, sender_of: Callable[[str], Sender],
        models: BatchModels, *, max_requests: int, max_body_bytes: int, now: Callable[[], float] = time.time,
        clock: Callable[[], float] | None = None,
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
            clock: seconds that are never set; by default the loop's.
        """
        self._store, self._files, self._now = store, files, now
        self._requests = BatchRequests(
            store, slots, sender_of, models, max_requests=max_requests, max_body_bytes=max_body_bytes, now=now,
            on_storage_error=self._wait_for_storage, clock=clock,
        )  # fmt: skip
        self._threads = ThreadPoolExecutor(OUTPUT_THREADS, "batch outputs")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: dict[str, asyncio.Event] = {}
        self._ending: set[str] = set()
        self._is_closed = False

    def check_open(self) -> None:
        """Raise Unavailable once close() was called."""
        if self._is_closed:
            raise leaving_error()

    def start(self, batch: StoredBatch) -> None:
        """Run a batch that has not ended, from where it is; after close() it stays in the store for the next start."""
        if self._is_closed:
            return
        self._cancelled[batch.id] = asyncio.Event()
        task = self._tasks[batch.id] = asyncio.create_task(self._run(batch), name=batch.id)
        task.add_done_callback(lambda _: (self._tasks.pop(batch.id), self._cancelled.pop(batch.id)))

    async def cancel(self, batch: StoredBatch) -> None:
        """Begin to cancel a batch: its open requests are aborted, and the responses so far become its output.

        A cancelled batch stays as it is. Raises InvalidRequest for one that has ended or is about to, and OSError where
        that it is cancelled cannot be written; it is cancelled all the same, unless the process ends before.
        """
        is_ending = batch.id in self._ending
        if batch.status is BatchStatus.CANCELLED or (batch.status is BatchStatus.CANCELLING and is_ending):
            return
        if batch.status is not BatchStatus.CANCELLING:
            is_open = batch.status in OPEN_STATUSES
            if not is_open or is_ending:
                shown = f"is {batch.status}" if not is_open else "changes to a final one"
                raise InvalidRequest(f"a batch whose status {shown} cannot be cancelled", param="batch_id")
            batch.enter(BatchStatus.CANCELLING, self._now())
            batch.ending = BatchStatus.CANCELLED
            if (cancelled := self._cancelled.get(batch.id)) is not None:
                cancelled.set()
        await self._store.save(batch)  # again where it is cancelled twice: the first time may have failed

    def abort_all(self) -> None:
        """Abort the open requests of all batches, which have no response then: a later start sends them again."""
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        """Stop all batches where they are, and run none from now on. May be called more than once."""
        self._is_closed = True
        tasks = [*self._tasks.values()]
        self.abort_all()
        await wait_for_end(*tasks)
        self._requests.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, batch: StoredBatch) -> None:
        while not batch.status.is_final:
            try:
                await self._advance(batch)
                batch.storage_problem = ""
            except FileNotFoundError as error:
                await self._fail(batch, "file_missing", f"a file of the batch is missing: {error.strerror}")
            except (OSError, Unavailable) as error:
                await self._pause_for_storage(batch, error)
            except ChairliftError as error:
                await self._fail(batch, error.code, error.message)
            except Exception:
                log.exception("internal error: batch %s has failed", batch.id)
                await self._fail(batch, "internal_error", "internal error; the server's log has the reason")

    async def _until_cancelled_or_expired(self, batch: StoredBatch, work: Awaitable[object]) -> bool:
        """Wait for some work; returns False where the batch is cancelled or its window ends before. Raises as it."""
        working = asyncio.ensure_future(work)
        cancelling = asyncio.create_task(self._cancelled[batch.id].wait())
        try:
            while (seconds := batch.expires_at - self._now()) > 0 and not (working.done() or cancelling.done()):
                await asyncio.wait(
                    {working, cancelling}, timeout=min(seconds, CLOCK_SECONDS), return_when=asyncio.FIRST_COMPLETED
                )
            is_done = working.done()
        finally:
            for task in (working, cancelling):
                task.cancel()
            await wait_for_end(working, cancelling)
        if is_done:
            working.result()
        return is_done

    async def _pause_for_storage(self, batch: StoredBatch, error: OSError | Unavailable) -> None:
        """Wait until it is worth another attempt, or until an open batch is cancelled or its window ends."""
        waiting = self._wait_for_storage(batch, error)
        if batch.status in OPEN_STATUSES and self._now() < batch.expires_at:
            await self._until_cancelled_or_expired(batch, waiting)
        else:
            await waiting

    async def _wait_for_storage(self, batch: StoredBatch, error: OSError | Unavailable) -> None:
        if not batch.storage_problem:  # log only the first of a series of failures
            log.warning("batch %s waits: its files cannot be written: %s", batch.id, error)
        reason = error.message if isinstance(error, Unavailable) else error.strerror or str(error)
        batch.storage_problem = f"the files of the batch cannot be written ({reason}); it goes on when they can"
        await asyncio.sleep(STORAGE_RETRY_SECONDS)

    async def _fail(self, batch: StoredBatch, code: str, message: str) -> None:
        """Let a batch fail; the responses that it has become its outputs once they can be written.

        Clients see that it has failed once that is written: a later start would go on with it otherwise.
        """
        batch.add_error(code, message)
        outputs = BatchOutputs(batch.total, batch.completed, batch.failed)
        while not batch.status.is_final:
            try:
                outputs = await self._write_failed_outputs(batch)
                await self._end(batch, BatchStatus.FAILED, outputs)
            except FileNotFoundError as error:  # its folder is gone: no later start finds it
                log.warning("the state of batch %s cannot be written: %s", batch.id, error)
                _enter_final(batch, BatchStatus.FAILED, outputs, self._now())
            except (OSError, Unavailable) as error:
                await self._wait_for_storage(batch, error)
            except Exception:
                log.exception("internal error: the state of batch %s is not written", batch.id)
                _enter_final(batch, BatchStatus.FAILED, outputs, self._now())

    async def _write_failed_outputs(self, batch: StoredBatch) -> BatchOutputs:
        """Write the outputs of a batch that fails; without them where they are gone, or behind the end of its window.

        Raises OSError and Unavailable before it.
        """
        try:
            return await self._write_outputs(batch, None)
        except (OSError, Unavailable) as error:
            if self._now() < batch.expires_at and not isinstance(error, FileNotFoundError):
                raise
            log.warning("the outputs of batch %s cannot be written: %s", batch.id, error)
        except Exception:
            log.exception("internal error: the outputs of batch %s are not written", batch.id)
        return BatchOutputs(batch.total, batch.completed, batch.failed)

    async def _advance(self, batch: StoredBatch) -> None:
        """Take a batch to its end. Raises OSError and Unavailable; then it can be called again."""
        if batch.status in OPEN_STATUSES:
            is_done = await self._until_cancelled_or_expired(batch, self._requests.run(batch))
            if is_done and batch.errors and batch.status is BatchStatus.VALIDATING:
                await self._end(batch, BatchStatus.FAILED, BatchOutputs(0, 0, 0))
                return
            batch.errors.clear()
            if not is_done and batch.status is not BatchStatus.CANCELLING:
                is_done = await self._requests.has_all_responses(batch)
            if batch.status in OPEN_STATUSES:  # it is not cancelled meanwhile
                batch.ending = BatchStatus.COMPLETED if is_done else BatchStatus.EXPIRED
                batch.enter(BatchStatus.FINALIZING, self._now())
        if batch.status is BatchStatus.FINALIZING:  # written before the responses get those of an expired batch
            await self._store.save(batch)
        if batch.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
            expired = self._requests.file(batch) if batch.ending is BatchStatus.EXPIRED else None
            outputs = await self._write_outputs(batch, expired)
            await self._end(batch, batch.ending, outputs)

    async def _write_outputs(self, batch: StoredBatch, expired: BatchFile | None) -> BatchOutputs:
        """See write_outputs(). It may be cancelled at any time."""
        arguments = (self._store, self._files, batch, expired, MAX_REQUESTS)
        return await stoppable_in_thread(write_outputs, *arguments, executor=self._threads)

    async def _end(self, batch: StoredBatch, status: BatchStatus, outputs: BatchOutputs) -> None:
        """Come to a final state, which clients see once it is written. Raises OSError; then the state is as before."""
        now = self._now()
        ended = replace(batch, times=dict(batch.times))
        _enter_final(ended, status, outputs, now)
        self._ending.add(batch.id)  # from here on it cannot be cancelled
        try:
            await self._store.save(ended)
            await in_thread(self._store.remove_work, batch)
            _enter_final(batch, status, outputs, now)
        finally:
            self._ending.discard(batch.id)


def _enter_final(batch: StoredBatch, status: BatchStatus, outputs: BatchOutputs, now: float) -> None:
    outputs.assign(batch)
    batch.enter(status, now)
    batch.storage_problem = ""
