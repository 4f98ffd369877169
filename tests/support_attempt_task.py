"""One attempt in tests: sent to a scripted replica, with the events that it reports."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from chairlift.router.attempts.actions import ResponseMode, SendAttempt
from chairlift.router.attempts.events import Event
from chairlift.router.proxy.attempt_task import AttemptResponse, UpstreamRequest, run_attempt
from chairlift.router.proxy.upstream import Upstream, UpstreamConfig
from chairlift.web.error_responses import Header
from support_router import COMPLETIONS, Connection, ReceivedRequest, Script, scripted
from support_server import run


@asynccontextmanager
async def upstream_of(config: UpstreamConfig | None = None) -> AsyncIterator[Upstream]:
    """Open the connections of a router."""
    upstream = Upstream(config or UpstreamConfig())
    try:
        yield upstream
    finally:
        await upstream.close()


@dataclass(slots=True)
class AttemptLog:
    """What an attempt has reported."""

    events: list[Event] = field(default_factory=list)
    response: AttemptResponse = field(default_factory=AttemptResponse)
    num_bytes: int = 0

    def report(self, events: Sequence[Event]) -> None:
        """Keep the events."""
        self.events += events

    def never_wait(self, num_bytes: int) -> None:
        """Count bytes, and let the attempt read on."""
        self.num_bytes += num_bytes

    async def wait_for(self, num_events: int) -> None:
        """Wait for a number of events."""
        while len(self.events) < num_events:
            await asyncio.sleep(0.001)


async def send_attempt(
    upstream: Upstream, url: str, mode: ResponseMode = ResponseMode.WHOLE, *, method: str = "POST",
    headers: Sequence[Header] = (), body: bytes | None = b'{"model":"m"}', members: Mapping[str, Any] | None = None,
    own_members: Mapping[str, Any] | None = None, timeout_seconds: float | None = None, is_repeatable: bool = True,
    log: AttemptLog | None = None, report: Callable[[Sequence[Event]], None] | None = None,
    wait_until_read: Callable[[int], "asyncio.Future[None] | None"] | None = None,
) -> AttemptLog:  # fmt: skip
    """Send one attempt and return what it has reported at its end; `log` gets it before."""
    log = log or AttemptLog()
    request = UpstreamRequest(
        method=method, target=COMPLETIONS, headers=list(headers), body=body, request_id="r-1", members=members or {},
        is_repeatable=is_repeatable,
    )  # fmt: skip
    action = SendAttempt(1, url, mode, own_members or {}, timeout_seconds)
    await run_attempt(upstream, request, action, log.response, report or log.report, wait_until_read or log.never_wait)
    return log


async def attempt(upstream: Upstream, url: str, mode: ResponseMode = ResponseMode.WHOLE, **options: Any) -> AttemptLog:
    """Send one attempt, which must end soon; see send_attempt."""
    return await asyncio.wait_for(send_attempt(upstream, url, mode, **options), 10)


def events_of(script: Script, mode: ResponseMode = ResponseMode.WHOLE, **options: Any) -> Any:
    """Return what an attempt reports whose replica follows a script."""

    async def scenario() -> Any:
        async with scripted(script) as replica, upstream_of() as upstream:
            return (await attempt(upstream, replica.url, mode, **options)).events

    return run(scenario())


def raw(*pieces: bytes) -> Script:
    """Return a script that sends bytes as they are, and closes the connection."""

    async def script(connection: Connection, request: ReceivedRequest) -> None:
        connection.write(b"".join(pieces))
        connection.close()

    return script
