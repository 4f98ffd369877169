"""BatchRequests: takes batches from the check of their requests to the last response."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from chairlift.core.errors import NotFound
from chairlift.web.batch_api.batch_models import NOT_RESOLVED, BatchModels
from chairlift.web.batch_api.batch_slots import BatchSlots, SlotQueue
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.in_thread import in_thread, stoppable_in_thread
from chairlift.web.batch_api.response_journal import ResponseJournal
from chairlift.web.batch_api.running_places import RunningPlaces
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch
from chairlift.web.batch_api.wait_for_end import wait_for_end
from chairlift.web.batch_files.batch_lines import MAX_LINES_PER_REQUEST, BatchCheck, BatchFile
from chairlift.web.batch_files.batch_run import BatchProgress, Sender, run_batch_file

log = logging.getLogger(__name__)

MAX_REQUESTS = 50_000
"""Requests of one batch, as many as OpenAI's API takes."""

MAX_MODELS = 1000
"""Different models that the requests of one batch name, at most: they are kept, and looked for again and again."""

MAX_RETRIES = 3
"""How often a request is sent again after an error of the server."""

MAX_RUNNING_BATCHES = 64
"""Batches that send requests at the same time, at most, besides the first one of each tenant."""

MAX_RUNNING_OF_TENANT = 8
"""Batches of one tenant that send requests at the same time; the others wait in the order of their creation."""

JOURNAL_THREADS = 4
"""Threads that read the responses of an earlier start."""

READ_THREADS = 4
"""Threads that read the requests of running batches, each a bounded piece of a file at a time."""

POLL_SECONDS = 0.2
"""Seconds between two looks at whether the models of a batch are served, the fewest."""

MAX_POLL_FACTOR = 10
"""How many times as long the pause between two looks becomes while nothing changes: many batches may wait."""

LOST_SECONDS = 5.0
"""Seconds for which the models of a running batch are not served before it gives its place back."""

SYNC_SECONDS = 5.0
"""Seconds between two times at which responses are brought to the disk: a power failure takes later ones."""

OnStorageError = Callable[[StoredBatch, OSError], Awaitable[None]]
"""Shows that a response of a batch cannot be written, and returns when it is worth another attempt."""


class BatchRequests:
    """Runs the requests of batches. Belongs to one event loop.

    A batch has one of the running places only while its requests can be sent: batches that wait for a model leave them
    to others.
    """

    def __init__(
        self, store: BatchStore, slots: BatchSlots, sender_of: Callable[[str], Sender], models: BatchModels, *,
        max_requests: int, max_body_bytes: int, now: Callable[[], float], on_storage_error: OnStorageError,
        clock: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        """Prepare to run requests.

        Args:
            store: the batches.
            slots: say when a request may begin.
            sender_of: returns what sends the requests of a tenant.
            models: the models that requests may name.
            max_requests: open requests of one batch, at most.
            max_body_bytes: largest body of a request.
            now: seconds since 1970.
            on_storage_error: see OnStorageError.
            clock: seconds that are never set; by default the loop's.
        """
        self._store, self._slots, self._sender_of, self._models = store, slots, sender_of, models
        self._max_requests, self._max_body_bytes, self._now = max_requests, max_body_bytes, now
        self._on_storage_error = on_storage_error
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._running = RunningPlaces(MAX_RUNNING_BATCHES, MAX_RUNNING_OF_TENANT)
        self._reading = RunningPlaces(1, 1)  # so that what one tenant has to read waits for one file of each other
        self._checks = ThreadPoolExecutor(1, "batch check")  # one file at a time: a check takes the processor
        self._journals = ThreadPoolExecutor(JOURNAL_THREADS, "batch journal")
        self._readers = ThreadPoolExecutor(READ_THREADS, "batch lines")

    def close(self) -> None:
        """Let no further thread begin. May be called more than once."""
        for executor in (self._checks, self._journals, self._readers):
            executor.shutdown(wait=False, cancel_futures=True)

    def file(self, batch: StoredBatch) -> BatchFile:
        """Return the requests of a batch."""
        return BatchFile(self._store.requests_path(batch), (batch.endpoint,), self._max_body_bytes)

    async def run(self, batch: StoredBatch) -> None:
        """Return when each request has a response, or when a batch has errors because of which none is sent.

        It may be cancelled at any time, and called again. Raises OSError, and NotFound where the file of the requests
        has become shorter since the batch was accepted.
        """
        try:
            names: Mapping[str, int] = {}
            if batch.status is BatchStatus.VALIDATING:
                check = await self._check(batch)
                _note_problems(batch, check)
                num_requests, names = check.num_requests, check.models
            else:
                num_requests = batch.total = batch.total or (await self._check(batch)).num_requests
                if await self.has_all_responses(batch):
                    return  # it needs no model any more
            await self._run_when_served(batch, num_requests, names)
        finally:
            batch.model_problem = ""

    async def has_all_responses(self, batch: StoredBatch) -> bool:
        """Count the responses on the disk; returns whether each request of an accepted batch has one.

        Raises OSError.
        """
        if not batch.total:
            return False
        journal = self._journal(batch)
        async with self._reading.place(batch.tenant, batch.number):
            counted = await stoppable_in_thread(journal.count, executor=self._journals)
            batch.completed, batch.failed = counted
            if sum(counted) < batch.total:
                return False
            try:
                await stoppable_in_thread(journal.open, executor=self._journals)
                return len(journal.done) >= batch.total
            finally:
                await in_thread(journal.close)

    async def _check(self, batch: StoredBatch) -> BatchCheck:
        async with self._reading.place(batch.tenant, batch.number):
            return await stoppable_in_thread(self.file(batch).check, MAX_REQUESTS, MAX_MODELS, executor=self._checks)

    async def _run_when_served(self, batch: StoredBatch, num_requests: int, names: Mapping[str, int]) -> None:
        """Send the requests while their models are served; `names`: see BatchModels.accept()."""
        wait = _ModelWait(self._models, batch, names, self._clock)
        is_complete = False
        while not is_complete and not batch.errors:
            await self._until_served(batch, wait)
            if batch.errors:
                return
            async with self._running.place(batch.tenant, batch.number):
                if not self._slots.room.is_ready() or wait.problem() or batch.errors:  # it changed since
                    continue
                if batch.status is BatchStatus.VALIDATING:
                    await self._accept(batch, num_requests)
                is_complete = batch.status is not BatchStatus.IN_PROGRESS or await self._send(batch)

    async def _until_served(self, batch: StoredBatch, wait: "_ModelWait") -> None:
        pause = POLL_SECONDS
        while True:
            before = batch.model_problem
            if self._slots.room.is_ready():
                batch.model_problem = wait.problem()
                if not batch.model_problem:
                    return
            else:
                wait.restart()
            pause = _next_pause(pause) if batch.model_problem == before else POLL_SECONDS
            await asyncio.sleep(pause)

    async def _accept(self, batch: StoredBatch, num_requests: int) -> None:
        """Come to IN_PROGRESS, once it is written for which models. Raises OSError; then the state is as before."""
        now, batch.total = self._now(), num_requests
        accepted = replace(batch, times=dict(batch.times))
        accepted.enter(BatchStatus.IN_PROGRESS, now)
        await self._store.save(accepted)
        if batch.status is BatchStatus.VALIDATING:  # it is not cancelled meanwhile
            batch.enter(BatchStatus.IN_PROGRESS, now)

    async def _send(self, batch: StoredBatch) -> bool:
        """Send the requests without a response.

        Returns True when each has one, and False when the models of the batch are not served any more. Raises OSError.
        """
        journal = self._journal(batch)
        try:
            await stoppable_in_thread(journal.open, executor=self._journals)
            _count(batch, BatchProgress(batch.total, len(journal.done), journal.num_errors))
            queue = self._slots.queue(batch.tenant)
            num_unwritten = 0  # responses that are only in memory

            async def wait_for_storage(error: OSError) -> None:
                nonlocal num_unwritten
                num_unwritten += 1
                try:
                    await self._on_storage_error(batch, error)
                finally:
                    num_unwritten -= 1

            sending = asyncio.create_task(self._send_all(batch, journal, queue, wait_for_storage))
            watching = asyncio.create_task(
                self._until_not_served(
                    batch, lambda: not queue.num_open and not num_unwritten and len(journal.done) < batch.total
                )
            )
            syncing = asyncio.create_task(self._keep_on_disk(batch, journal))
            try:
                await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
                if not sending.done():
                    watching.result()
                    return False
                sending.result()
                if (num_lost := batch.total - len(journal.done)) > 0:
                    raise NotFound(f"{num_lost} requests of the batch are not in its file any more")
                return True
            finally:
                for task in (sending, watching, syncing):
                    task.cancel()
                await wait_for_end(sending, watching, syncing)
        finally:
            await in_thread(journal.close)

    async def _send_all(
        self, batch: StoredBatch, journal: ResponseJournal, queue: SlotQueue,
        on_write_error: Callable[[OSError], Awaitable[None]],
    ) -> None:  # fmt: skip
        await run_batch_file(
            self.file(batch), batch.total, journal, self._sender_of(batch.tenant),
            max_concurrent=self._max_requests, max_retries=MAX_RETRIES, refused_statuses=(),
            slot=queue.slot, on_progress=lambda progress: _count_response(batch, progress),
            on_write_error=on_write_error, executor=self._readers,
        )  # fmt: skip

    async def _until_not_served(self, batch: StoredBatch, is_idle: Callable[[], bool]) -> None:
        """Return when the models of a batch are lost and it is idle: its further requests would only wait."""
        pause, lost_since = POLL_SECONDS, None
        while True:
            await asyncio.sleep(pause)
            is_ready = self._slots.room.is_ready()
            if not is_ready or not self._models.problem(batch):
                lost_since = None
                if is_ready and self._models.resolve_rest(batch):
                    await self._save_models(batch)
                pause = POLL_SECONDS if NOT_RESOLVED in batch.models.values() else _next_pause(pause)
                continue
            pause, now = POLL_SECONDS, self._clock()
            lost_since = now if lost_since is None else lost_since
            if is_idle() and now - lost_since >= LOST_SECONDS:
                return

    async def _save_models(self, batch: StoredBatch) -> None:
        try:
            await self._store.save(batch)
        except OSError as error:  # the next state has them, too
            log.warning("the models of batch %s are not on the disk yet: %s", batch.id, error)

    async def _keep_on_disk(self, batch: StoredBatch, journal: ResponseJournal) -> None:
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            try:
                await in_thread(journal.sync)
            except OSError as error:
                log.warning("the responses of batch %s are not on the disk yet: %s", batch.id, error)
            except Exception:
                log.exception("internal error: the responses of batch %s are not on the disk yet", batch.id)
            await in_thread(self._store.count, batch)

    def _journal(self, batch: StoredBatch) -> ResponseJournal:
        return ResponseJournal(self._store.responses_path(batch), self._store.errors_path(batch))


class _ModelWait:
    """Looks at whether the models of a batch are served, and for how long a new batch has waited for them."""

    def __init__(
        self, models: BatchModels, batch: StoredBatch, names: Mapping[str, int], clock: Callable[[], float]
    ) -> None:  # fmt: skip
        """Prepare; `names`: see BatchModels.accept()."""
        self._models, self._batch, self._names, self._clock = models, batch, names, clock
        self._since: float | None = None

    def problem(self) -> str:
        """Return why the requests cannot be sent now, "" where they can or where the batch has errors."""
        if self._batch.status is BatchStatus.IN_PROGRESS:
            return self._models.problem(self._batch)
        now = self._clock()
        since = now if self._since is None else self._since
        found = self._models.accept(self._batch, self._names, now - since)
        self._since = since if found and self._models.is_any_known else None
        return found

    def restart(self) -> None:
        """Count the time from the next look on: the service is not ready."""
        self._since = None


def _next_pause(pause: float) -> float:
    return min(2 * pause, MAX_POLL_FACTOR * POLL_SECONDS)


def _note_problems(batch: StoredBatch, check: BatchCheck) -> None:
    """Add an error to a batch for each reason why it cannot be accepted."""
    batch.errors.clear()  # of an attempt whose state could not be written
    for problem in check.problems:
        batch.add_error("invalid_line", problem.message, problem.number)
    if (num_more := check.num_problems - len(check.problems)) > 0:
        is_whole = check.num_problems <= MAX_REQUESTS and not check.has_too_many_lines  # else the check has ended
        shown = f"{num_more} more" if is_whole else f"{num_more} or more other"
        batch.add_error("invalid_line", f"{shown} lines are invalid")
    if check.has_too_many_lines:
        shown = f"{MAX_LINES_PER_REQUEST * MAX_REQUESTS} lines, empty ones included"
        batch.add_error("too_many_lines", f"the file has more than {shown}, which is the limit")
    elif not check.num_problems and not check.num_requests:
        batch.add_error("empty_file", "the file has no requests")
    if check.num_requests > MAX_REQUESTS:
        batch.add_error("too_many_requests", f"the file has more than {MAX_REQUESTS} requests, which is the limit")


def _count(batch: StoredBatch, progress: BatchProgress) -> None:
    batch.completed, batch.failed = progress.done - progress.failed, progress.failed


def _count_response(batch: StoredBatch, progress: BatchProgress) -> None:
    _count(batch, progress)
    batch.storage_problem = ""  # it was written
