"""run_batch_file: sends the requests of a batch that have no response yet, many at a time, and writes each response."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from chairlift.core.errors import ConfigError
from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.batch_files.output_journal import RETRIED_STATUSES

REFUSED_STATUSES = frozenset({401, 403})
"""Statuses of a key that the server refuses: all further requests would fail."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0

READ_LINES, READ_BYTES = 64, 1_000_000
"""Lines of a batch file that a thread reads at once, at most, and the bytes of their bodies, about."""

SKIPPED_LINES = 1000
"""Lines with a response that a thread skips at once, at most: other files are read between two pieces."""


@dataclass(frozen=True, slots=True)
class BatchResponse:
    """The response to one request.

    Attributes:
        status: HTTP status; 0 if the server could not be reached.
        request_id: id that the server gave the request.
        body: the JSON value of the response, or the reason why there is none.
        retry_after: seconds that the server asks to wait; None if it does not.
    """

    status: int
    request_id: str
    body: Any
    retry_after: float | None = None


class Sender(Protocol):
    """Sends one request."""

    def __call__(self, line: BatchLine) -> Awaitable[BatchResponse]:
        """Send a request and wait for the whole response. Never raises for an error of the request."""
        ...


class BatchAttempt(Protocol):
    """One sending of a request."""

    def is_busy(self, response: BatchResponse, num_attempts: int) -> bool:
        """Return whether the request is sent again, and no retry is counted, because the server could not take it.

        `num_attempts`: how often it was sent so far.
        """
        ...


class CustomIds(Protocol):
    """Names of requests."""

    def __contains__(self, custom_id: object, /) -> bool:
        """Return whether a name is one of them."""
        ...

    def __len__(self) -> int:
        """Return their number."""
        ...


class Journal(Protocol):
    """Keeps the responses of a batch."""

    @property
    def done(self) -> CustomIds:
        """Custom ids of the requests that have a response."""
        ...

    @property
    def num_errors(self) -> int:
        """Number of the responses that are an error."""
        ...

    def append(self, custom_id: str, entry: Mapping[str, Any]) -> None:
        """Write the response of a request. Raises OSError; the request is not done then."""
        ...


@asynccontextmanager
async def unlimited_slot() -> AsyncIterator[BatchAttempt]:
    """Let a request be sent at once, and again after an error as often as `max_retries` says."""
    yield _LimitedAttempt()


@dataclass(slots=True)
class BatchProgress:
    """What a run has done so far.

    Attributes:
        total: requests of the file.
        done: those with a response, also from earlier runs.
        failed: responses that are an error, also from earlier runs.
        tokens: tokens of the responses of this run, prompts and outputs.
    """

    total: int
    done: int
    failed: int = 0
    tokens: int = 0


async def run_batch_file(
    lines: Iterable[BatchLine], num_lines: int, journal: Journal, send: Sender, *, max_concurrent: int,
    max_retries: int, on_progress: Callable[[BatchProgress], None] = lambda progress: None,
    slot: Callable[[], AbstractAsyncContextManager[BatchAttempt]] = unlimited_slot,
    refused_statuses: Collection[int] = REFUSED_STATUSES,
    on_write_error: Callable[[OSError], Awaitable[None]] | None = None, executor: Executor | None = None,
) -> BatchProgress:  # fmt: skip
    """Run the requests without a response; returns when each has one.

    Args:
        lines: all requests of the file, no name twice, read by a thread a few at a time, before they are sent.
        num_lines: their number.
        journal: keeps the responses.
        send: sends a request.
        max_concurrent: open requests at most.
        max_retries: how often a request is sent again after one of RETRIED_STATUSES, or without a response.
        on_progress: called after each response.
        slot: returns a context that is entered before each attempt and left after its response, so that no pause
            between two attempts keeps a place.
        refused_statuses: statuses that end the run.
        executor: its threads read the lines; by default those of the loop.
        on_write_error: awaited when a response cannot be written, which is then tried again; by default the run ends.

    Raises OSError when a response cannot be written, and ConfigError when the server refuses the key; the open
    requests are cancelled, and a later run sends them.
    """
    progress = BatchProgress(total=num_lines, done=len(journal.done), failed=journal.num_errors)
    waiting = _LineReader(iter(lines), journal.done, executor)
    num_waiting = num_lines - progress.done

    async def work() -> None:
        nonlocal num_waiting
        while num_waiting > 0:
            num_waiting -= 1  # before the slot, so that none is waited for without a request
            if (answered := await _send_until_answered(waiting, send, slot, max_retries)) is None:
                return
            line, response = answered
            if response.status in refused_statuses:
                raise ConfigError(f"the server refuses the key (status {response.status}); set CHAIRLIFT_API_KEY")
            await _write(journal, line, response, on_write_error)
            progress.done += 1
            progress.failed = journal.num_errors
            progress.tokens += _tokens_of(response.body)
            on_progress(progress)

    workers = [asyncio.create_task(work()) for _ in range(min(max_concurrent, max(1, progress.total - progress.done)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return progress


def output_entry(line: BatchLine, response: BatchResponse) -> dict[str, Any]:
    """Return the line of the output file, as OpenAI's batch API writes it."""
    entry: dict[str, Any] = {"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": line.custom_id}
    if response.status == 0:
        return entry | {"response": None, "error": {"code": "no_response", "message": str(response.body)}}
    answered = {"status_code": response.status, "request_id": response.request_id, "body": response.body}
    return entry | {"response": answered, "error": None}


async def _send_until_answered(
    lines: "_LineReader", send: Sender, slot: Callable[[], AbstractAsyncContextManager[BatchAttempt]], max_retries: int
) -> tuple[BatchLine, BatchResponse] | None:
    """Send the next request until its response is final; returns both, None where no request is left."""
    if (line := await lines.read()) is None:  # before the slot, which would be empty meanwhile
        return None
    pause, num_retries, num_attempts = FIRST_PAUSE_SECONDS, 0, 0
    while True:
        async with slot() as attempt:
            lines.begin(line)
            response = await send(line)
            num_attempts += 1
            is_busy = attempt.is_busy(response, num_attempts)
        if is_busy:  # the next slot begins when it is worth another attempt
            continue
        is_final = response.status and response.status not in RETRIED_STATUSES - REFUSED_STATUSES
        if is_final or num_retries == max_retries:
            return line, response
        num_retries += 1
        await asyncio.sleep(min(pause if response.retry_after is None else response.retry_after, LONGEST_PAUSE_SECONDS))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _write(
    journal: Journal, line: BatchLine, response: BatchResponse,
    on_error: Callable[[OSError], Awaitable[None]] | None,
) -> None:  # fmt: skip
    entry = output_entry(line, response)
    while True:
        try:
            return journal.append(line.custom_id, entry)
        except OSError as error:
            if on_error is None:
                raise
            await on_error(error)


class _LimitedAttempt:
    """See BatchAttempt: no error of the server is waited for without a limit."""

    def is_busy(self, response: BatchResponse, num_attempts: int) -> bool:
        return False


class _LineReader:
    """Reads the requests without a response in threads, a bounded piece at a time.

    Those that are read and not sent yet have about twice READ_BYTES, or are two lines.
    """

    def __init__(self, lines: Iterator[BatchLine], done: CustomIds, executor: Executor | None) -> None:
        self._lines, self._done, self._executor = lines, done, executor
        self._lock, self._has_begun = asyncio.Lock(), asyncio.Event()
        self._next: deque[BatchLine] = deque()
        self._waiting: dict[int, int] = {}  # number of a line that waits for its slot -> bytes of its body
        self._is_at_end = False

    async def read(self) -> BatchLine | None:
        """Return the next request once the memory has room for it, None at the end. Raises OSError."""
        async with self._lock:
            while sum(self._waiting.values()) >= READ_BYTES:
                self._has_begun.clear()
                await self._has_begun.wait()
            while not self._next and not self._is_at_end:
                some = await asyncio.get_running_loop().run_in_executor(self._executor, self._read_some)
                self._next.extend(some)
            if not self._next:
                return None
            line = self._next.popleft()
            self._waiting[line.number] = len(line.body)
            return line

    def begin(self, line: BatchLine) -> None:
        """Note that a request is sent; may be called more than once for one."""
        self._waiting.pop(line.number, None)
        self._has_begun.set()

    def _read_some(self) -> list[BatchLine]:
        some: list[BatchLine] = []
        num_bytes = num_skipped = 0
        for line in self._lines:
            num_bytes += len(line.body)
            if line.custom_id in self._done:
                num_skipped += 1
            else:
                some.append(line)
            if len(some) == READ_LINES or num_skipped == SKIPPED_LINES or num_bytes >= READ_BYTES:
                return some
        self._is_at_end = True
        return some


def _tokens_of(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, Mapping) else None
    tokens = usage.get("total_tokens") if isinstance(usage, Mapping) else None
    return tokens if isinstance(tokens, int) else 0
