"""RequestProxy in tests: its replicas, its client, and Chairlift replicas that stream or report numbered tokens."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.clock import FakeClock
from chairlift.router.attempts.actions import PickReplica, RecordOutcome
from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.attempts.events import NoReplica
from chairlift.router.attempts.generation_fields import GenerationFields
from chairlift.router.attempts.request_machine import RequestMachine
from chairlift.router.attempts.retry_budget import RetryBudget
from chairlift.router.endpoint import ReplicaKind
from chairlift.router.health.served_models import ServedModels
from chairlift.router.proxy.attempt_task import UpstreamRequest
from chairlift.router.proxy.client_writer import ClientWriter
from chairlift.router.proxy.request_proxy import RequestProxy
from chairlift.web.body import Message
from support_attempt_task import upstream_of
from support_replica_set import probed
from support_router import CHAT, Connection, ReceivedRequest, RunningRouter, Script

DONE = b"data: [DONE]\n\n"


def text_event(number: int) -> bytes:
    """Return an event of another server's stream."""
    return b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % number


def token_event(number: int, *, chunk_id: bytes = b"c", is_last: bool = False) -> bytes:
    """Return an event of a Chairlift server's stream whose token has the id 100 + its position."""
    reason = b'"stop"' if is_last else b"null"
    return (
        b'data: {"id":"%s","model":"m","choices":[{"index":0,"delta":{"content":"%d "},"logprobs":null,'
        b'"finish_reason":%s,"token_ids":[%d],"position":%d}]}\n\n'
    ) % (chunk_id, number, reason, 100 + number, number)


def client_event(number: int, *, chunk_id: bytes = b"c", is_last: bool = False) -> bytes:
    """Return what the client gets of a token_event."""
    event, _, rest = token_event(number, chunk_id=chunk_id, is_last=is_last).partition(b',"token_ids"')
    return event + rest[rest.index(b"}") :]


def token_stream(num_tokens: int, then: Callable[[Connection], Awaitable[None]] | None = None) -> Script:
    """Return a script that streams tokens behind those of `resume`; after `num_tokens`, it does what `then` does.

    The response has ten tokens; the id of its chunks is the port of its replica's client.
    """

    async def script(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head(x_own="1")
        begin = len(request.fields.get("resume", [[]])[0])
        for number in range(begin, min(10, begin + num_tokens)):
            await connection.piece(token_event(number, chunk_id=b"%d" % connection.port, is_last=number == 9))
        if then is not None:
            await then(connection)
        else:
            await connection.piece(DONE)
            await connection.end()

    return script


def know_weights(router: RunningRouter, fingerprints: Sequence[str] = ("w", "w"), model: str = "m") -> None:
    """Let a router know the weights of its replicas, which are Chairlift servers then."""
    replicas = router.router.replicas
    for url, fingerprint in zip(replicas.endpoints, fingerprints, strict=True):
        served = ServedModels(names=(model,), adapters=frozenset(), fingerprints={model: fingerprint})
        replicas.apply_probe(url, probed(models=served, kind=ReplicaKind.CHAIRLIFT), router.router.clock.now())


@dataclass(slots=True)
class FakeReservation:
    """A place on a replica that counts how often it is released."""

    replica_id: str
    incarnation: str = "1"
    fingerprint: str = ""
    is_resumable: bool = False
    is_replica_unhealthy: bool = False
    num_releases: int = 0
    outcomes: list[str] = field(default_factory=list)
    load_headers: list[str] = field(default_factory=list)

    def record(self, outcome: Any, now: float) -> None:
        self.outcomes.append(str(outcome))

    def record_first_token(self, seconds: float, now: float) -> None: ...

    def record_inter_token_latency(self, seconds: float, now: float) -> None: ...

    def record_load_header(self, text: str, now: float) -> None:
        self.load_headers.append(text)

    def release(self) -> None:
        self.num_releases += 1


@dataclass(slots=True)
class FakePicker:
    """Picks replicas in their order, each once."""

    urls: list[str]
    fingerprint: str = ""
    reservations: list[FakeReservation] = field(default_factory=list)
    outcomes: list[RecordOutcome] = field(default_factory=list)

    def pick(self, action: PickReplica) -> Any:
        if len(self.reservations) == len(self.urls):
            return None
        url = self.urls[len(self.reservations)]
        made = FakeReservation(url, fingerprint=self.fingerprint, is_resumable=self.fingerprint != "")
        self.reservations.append(made)
        return self.reservations[-1]

    def no_replica(self, action: PickReplica) -> NoReplica:
        return NoReplica(action.attempt)

    def record_attempt(self, outcome: RecordOutcome) -> None:
        self.outcomes.append(outcome)


@dataclass(slots=True)
class ProxyRun:
    """One request with what its client has received."""

    proxy: RequestProxy
    picker: FakePicker
    budget: RetryBudget
    clock: FakeClock
    messages: list[Message] = field(default_factory=list)
    first_outputs: list[bool] = field(default_factory=list)
    on_write: Callable[[], Awaitable[None]] | None = None

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        if self.on_write is not None and message["type"] == "http.response.body":
            await self.on_write()

    @property
    def content(self) -> bytes:
        """The bytes of the body so far."""
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def head(self) -> Message:
        """The head of the response."""
        return self.messages[0]

    def assert_all_ended(self) -> None:
        """Check that nothing of the request is left."""
        assert self.budget.active_requests == self.budget.active_retries == 0
        assert all(each.num_releases >= 1 for each in self.picker.reservations)
        assert not any(timer.handle.when() and not timer.handle.cancelled() for timer in self.proxy._timers.values())


@asynccontextmanager
async def proxy_run(
    urls: Sequence[str], *, is_streamed: bool = True, method: str = "POST", limits: AttemptLimits | None = None,
    deadline: float | None = None, fingerprint: str = "",
) -> AsyncIterator[ProxyRun]:  # fmt: skip
    """Make a request for these replicas, Chairlift servers if they have a fingerprint; its clock stands still."""
    budget, clock, picker = RetryBudget(), FakeClock(), FakePicker(list(urls), fingerprint)
    async with upstream_of() as upstream:
        machine = RequestMachine(
            GenerationFields(is_streamed=is_streamed, is_resumable=fingerprint != ""), limits or AttemptLimits(),
            budget, deadline=deadline,
        )  # fmt: skip
        request = UpstreamRequest(
            method=method, target=CHAT, headers=[], body=None if method in {"GET", "HEAD"} else b"{}",
            request_id="r-1", members={},
        )  # fmt: skip

        def count_first_output(is_token: bool) -> None:
            made.first_outputs.append(is_token)

        async def send(message: Message) -> None:
            await made.send(message)

        writer = ClientWriter(send, has_body=method != "HEAD")
        proxy = RequestProxy(
            machine, request, upstream, picker, writer, clock.now, count_first_output,
            lambda replica_id, num_attempts: ((b"x-from", f"{replica_id} {num_attempts}".encode()),),
        )  # fmt: skip
        made = ProxyRun(proxy, picker, budget, clock)
        yield made
        await asyncio.sleep(0)
