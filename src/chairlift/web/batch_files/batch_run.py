"""run_batch_file: sends the requests of a batch that have no response yet, many at a time, and writes each response."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from chairlift.core.errors import ConfigError
from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.batch_files.output_journal import RETRIED_STATUSES, OutputJournal

REFUSED_STATUSES = frozenset({401, 403})
"""Statuses of a key that the server refuses: all further requests would fail."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0


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
    lines: Iterable[BatchLine], num_lines: int, journal: OutputJournal, send: Sender, *, max_concurrent: int,
    max_retries: int, on_progress: Callable[[BatchProgress], None] = lambda progress: None,
    slot: Callable[[], AbstractAsyncContextManager[None]] = nullcontext, busy_statuses: Collection[int] = (),
) -> BatchProgress:  # fmt: skip
    """Run the requests without a response; returns when each has one.

    Args:
        lines: all requests of the file, read one by one when they are sent.
        num_lines: their number.
        journal: the output file.
        send: sends a request.
        max_concurrent: open requests at most.
        max_retries: how often a request is sent again after one of RETRIED_STATUSES, or without a response.
        on_progress: called after each response.
        slot: returns a context that is entered before each request and left after its response.
        busy_statuses: statuses after which a request is sent again without a limit.

    Raises OSError when a response cannot be written, and ConfigError when the server refuses the key; the open
    requests are cancelled, and a later run sends them.
    """
    progress = BatchProgress(total=num_lines, done=len(journal.done), failed=journal.num_errors)
    done_before = frozenset(journal.done)
    waiting = (line for line in lines if line.custom_id not in done_before)
    num_waiting = num_lines - len(done_before)

    async def work() -> None:
        nonlocal num_waiting
        while num_waiting > 0:
            num_waiting -= 1  # before the slot, so that none is waited for without a request
            async with slot():
                if (line := next(waiting, None)) is None:
                    return
                response = await _send_until_answered(line, send, max_retries, busy_statuses)
            if response.status in REFUSED_STATUSES:
                raise ConfigError(f"the server refuses the key (status {response.status}); set CHAIRLIFT_API_KEY")
            journal.append(line.custom_id, output_entry(line, response))
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
    line: BatchLine, send: Sender, max_retries: int, busy_statuses: Collection[int] = ()
) -> BatchResponse:  # fmt: skip
    pause, num_retries = FIRST_PAUSE_SECONDS, 0
    while True:
        response = await send(line)
        is_final = response.status and response.status not in RETRIED_STATUSES - REFUSED_STATUSES
        is_busy = response.status in busy_statuses
        if is_final or (num_retries == max_retries and not is_busy):
            return response
        num_retries += not is_busy
        await asyncio.sleep(min(pause if response.retry_after is None else response.retry_after, LONGEST_PAUSE_SECONDS))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _tokens_of(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, Mapping) else None
    tokens = usage.get("total_tokens") if isinstance(usage, Mapping) else None
    return tokens if isinstance(tokens, int) else 0
