"""admit, prepare and Generation: the steps of one request from its admission to its response, streamed or whole."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import orjson

from chairlift.core.errors import (
    ChairliftError,
    DeadlineUnreachable,
    EngineDead,
    Overloaded,
    QueueFull,
    error_from_wire,
)
from chairlift.core.request import FinishReason, Timeline, Usage
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.outputs import RequestOutput, TextEvent
from chairlift.protocol.sse import DONE, named_event
from chairlift.server.openai.parse_request import BaseRequest
from chairlift.server.openai.response import Renderer, total
from chairlift.server.replica import Replica
from chairlift.server.telemetry import Telemetry
from chairlift.web.admission import Permit
from chairlift.web.body import ClientGone, Scope, Send
from chairlift.web.error_responses import INTERNAL_ERROR, Header, error_object, error_response_of
from chairlift.web.middleware import send_bytes
from chairlift.web.tenant_limits import TenantReservation
from chairlift.web.write_timeout import WriteTimeout

log = logging.getLogger(__name__)

Batch = list[tuple[int, TextEvent]]
SHORT_TOKENS = 4096
"""Tokens of a response, times its logprobs, that the event loop encodes as JSON itself: that takes a few ms."""

TOOLS = "tools"
POSITION = re.compile(r"(?<=: )at \d+\(\d+\): ")
"""Line and column of an error in the grammar of the calls, which the client did not write."""

REJECTION_STATUSES = frozenset({400, 429})
"""HTTP statuses of errors with which the engine rejects a request before any work."""

STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class EndpointHandler(Protocol):
    """What differs between the generation routes."""

    @property
    def is_quick(self) -> bool:
        """Whether processors() reads the body at most once, and runs no template or other foreign code."""
        ...

    def processors(self) -> list[OutputProcessor]:
        """Create the output processors with their engine requests, in any thread. Raises InvalidRequest."""
        ...

    def renderer(self, processors: Sequence[OutputProcessor]) -> Renderer:
        """Return the renderer that writes the response."""
        ...


class _GenerationTracker:
    """Tracks a running request's tokens, usage and timeline for telemetry and admission."""

    def __init__(
        self,
        telemetry: Telemetry,
        permit: Permit,
        started_at: float,
        processors: Sequence[OutputProcessor],
        request: BaseRequest,
    ) -> None:
        self._structured_field, self._is_stream = request.structured_field, request.stream
        self._telemetry = telemetry
        self._permit = permit
        self._started_at = started_at
        self._prompts = [len(processor.request.prompt_token_ids) for processor in processors]
        self._last: dict[tuple[int, int], float] = {}
        self._usages: list[Usage] = []
        self._output_tokens = 0
        self._timeline: Timeline | None = None
        self._reason = ""

    def take(self, batch: Batch) -> tuple[Batch, ChairliftError | None]:
        """Record a batch of events; return the events to deliver and the error that ends the request."""
        now = time.monotonic()
        for position, (number, event) in enumerate(batch):
            self._timeline = event.timeline or self._timeline
            self._note_tokens(number, event, now)
            if event.error is not None:  # many requests may share this error object
                error = with_client_field(
                    error_from_wire(event.error.code, event.error.message, event.error.details), self._structured_field
                )
                return [*batch[:position], (number, replace(event, finish_reason=None, error=None))], error
            if event.usage is not None:
                self._usages.append(event.usage)
                if len(self._usages) == len(self._prompts):
                    self._permit.mark_finished()
            self._reason = self._reason or event.finish_reason or ""
        return batch, None

    def _note_tokens(self, number: int, event: TextEvent, now: float) -> None:
        if not event.token_ids:
            return
        self._permit.mark_running()
        if not self._last:
            self._telemetry.record_first_token(now - self._started_at)
        last = self._last.get((number, event.index))
        gap = now - last if last is not None and self._is_stream else None  # a whole response has no gaps
        self._telemetry.record_tokens(len(event.token_ids), gap)
        self._last[number, event.index] = now
        self._output_tokens += len(event.token_ids)

    @property
    def usage(self) -> Usage:
        """Tokens used: as the engine reported, or as counted so far."""
        usage_so_far = total(self._usages)
        if len(self._usages) == len(self._prompts):
            return usage_so_far
        return Usage(sum(self._prompts), self._output_tokens, usage_so_far.cached_tokens)

    @property
    def _was_scheduled(self) -> bool:
        """Whether the engine has started to run the request."""
        moments = () if self._timeline is None else self._timeline.events
        return bool(self._last) or any(moment.name == "scheduled" for moment in moments)

    def end(self, request_id: str, error: BaseException | None) -> None:
        """Record the request's end, with or without an error, and end its permit."""
        usage = self.usage
        used = usage.prompt_tokens + usage.completion_tokens if self._was_scheduled else 0
        self._permit.end(used, makes_room=not isinstance(error, EngineDead))
        if (
            isinstance(error, ChairliftError)
            and not self._was_scheduled
            and error_response_of(error).status in REJECTION_STATUSES
        ):
            self._telemetry.record_rejection(error.code)
            return
        outcome = self._reason or "abort"
        if isinstance(error, ClientGone | asyncio.CancelledError):
            outcome = "abort"
        elif error is not None:
            outcome = error.code if isinstance(error, ChairliftError) else "internal_error"
        if outcome == FinishReason.ABORT:
            self._telemetry.record_abort("client" if isinstance(error, ClientGone) else "server")
        self._telemetry.record_finished(request_id, outcome, time.monotonic() - self._started_at, usage, self._timeline)


class AdmittedRequest:
    """A request's tenant reservation and permit; leaving the context ends both and records the end.

    Attributes:
        replica: the replica that serves the request.
        scope: the HTTP request's scope.
        reservation: tokens that the request has reserved of its tenant's limit.
        permit: admission permit.
        tracker: tracks the tokens, from prepare() on.
        stream_error: an error that a stream has reported to the client itself.
    """

    def __init__(self, replica: Replica, scope: Scope, reservation: TenantReservation, permit: Permit) -> None:
        self.replica = replica
        self.scope = scope
        self.reservation = reservation
        self.permit = permit
        self.tracker: _GenerationTracker | None = None
        self.stream_error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _refund_load_rejection(self.reservation, error)
        stream_error, self.stream_error = self.stream_error, None  # drops the frames that its traceback refers to
        if self.tracker is not None:
            self.tracker.end(self.scope["request_id"], stream_error if error is None else error)
            return
        self.permit.end()
        if isinstance(error, ClientGone):
            self.replica.telemetry.record_abort("client")


def admit(replica: Replica, scope: Scope, timeout: float | None) -> AdmittedRequest:
    """Admit a request by the server's state, its tenant's limits and the expected wait.

    Raises the error of the state, RateLimited and Overloaded.
    """
    replica.lifecycle.check()
    reservation = replica.tenants.begin(scope["principal"].tenant)
    try:
        permit = _acquire_permit(replica, scope, timeout, reservation)
    except BaseException as error:
        _refund_load_rejection(reservation, error)
        reservation.end(0)
        raise
    return AdmittedRequest(replica, scope, reservation, permit)


def _refund_load_rejection(reservation: TenantReservation, error: BaseException | None) -> None:
    """Refund a request that was rejected because of other requests' load, before the reservation ends."""
    if isinstance(error, Overloaded | QueueFull | DeadlineUnreachable):
        reservation.refund_request()


def _acquire_permit(replica: Replica, scope: Scope, timeout: float | None, reservation: TenantReservation) -> Permit:
    """Return the permit that the early check acquired, or else a new one. Raises Overloaded."""
    permit: Permit | None = scope.get("permit")
    if permit is None:
        size: int = scope.get("body_bytes", 0)
        return replica.admission.admit(0, timeout=timeout, on_end=reservation.end, body_bytes=size)
    permit.attach(timeout, reservation.end)
    return permit


async def prepare(
    admitted: AdmittedRequest, handler: EndpointHandler, request: BaseRequest, started_at: float
) -> "Generation":
    """Create a body's engine requests and reserve their tokens. Raises InvalidRequest, RateLimited."""
    replica, scope = admitted.replica, admitted.scope
    processors = await replica.run_by_body_size(handler.processors, scope, is_quick=handler.is_quick)
    prompt = sum(len(each.request.prompt_token_ids) for each in processors)
    max_output_tokens = sum(each.request.params.max_tokens or 0 for each in processors) * request.params.num_choices
    admitted.permit.set_prompt_tokens(prompt)
    admitted.reservation.reserve(prompt + max_output_tokens)
    renderer = handler.renderer(processors)
    tracker = _GenerationTracker(replica.telemetry, admitted.permit, started_at, processors, request)
    admitted.tracker = tracker
    scope["was_submitted"] = True
    return Generation(replica, scope, request, processors, renderer, tracker)


@dataclass(frozen=True, slots=True)
class Generation:
    """The prepared engine requests of one HTTP request, with the renderer of its response."""

    replica: Replica
    scope: Scope
    request: BaseRequest
    processors: list[OutputProcessor]
    renderer: Renderer
    tracker: _GenerationTracker

    def run(self) -> AsyncGenerator[Batch, None]:
        """Run the engine requests; yields their events in batches. Raises the engine's rejection."""
        return self.replica.llm.run(self.processors, at_once=self.request.stream)

    async def respond(
        self, batches: AsyncGenerator[Batch, None], send: Send, headers: Sequence[Header]
    ) -> Exception | None:
        """Send the response; return an error that a stream has reported to the client."""
        if not self.request.stream:
            await self._collect(batches)
            await send_bytes(send, await self._encode(), headers=[*headers])
            return None
        with WriteTimeout(self.scope, send, self.replica.config.write_timeout) as writer:
            stream = _StreamWriter(writer.send, headers, self.renderer, self.tracker)
            return await stream.run(batches, self.scope["request_id"], with_usage=self.request.include_usage)

    async def _collect(self, batches: AsyncGenerator[Batch, None]) -> None:
        """Wait for the last batch. Raises the error that ends the request."""
        failure: ChairliftError | None = None
        try:
            async for batch in batches:
                _, failure = self.tracker.take(batch)
                if failure is not None:
                    raise failure
        finally:
            failure = None  # its traceback refers to this frame: a cycle that only the garbage collector would free

    async def _encode(self) -> bytes:
        """Encode the whole response as JSON, a long one in another thread."""
        body = partial(_encode_response, self.renderer, [processor.result() for processor in self.processors])
        usage, params = self.tracker.usage, self.request.params
        tokens = usage.completion_tokens + (usage.prompt_tokens if params.echo else 0)
        is_long = tokens * (1 + (params.logprobs or 0)) > SHORT_TOKENS
        return await self.replica.in_thread(body) if is_long else body()


def _encode_response(renderer: Renderer, results: list[RequestOutput]) -> bytes:
    return orjson.dumps(renderer.full_response(results))


def with_client_field(error: ChairliftError, structured_field: str) -> ChairliftError:
    """Return an error of the request's grammar under the field in which the client sent it."""
    if not structured_field or error.details.get("param") != "structured":
        return error
    message = re.sub(r"^structured(\.\w+)?", structured_field, error.message)
    if structured_field == TOOLS:
        message = POSITION.sub("", message)
    return error_from_wire(error.code, message, {**error.details, "param": structured_field})


class _StreamWriter:
    """Writes a streamed response; sends nothing before the first output, so early errors get a status."""

    def __init__(self, send: Send, headers: Sequence[Header], renderer: Renderer, tracker: _GenerationTracker) -> None:
        self._send = send
        self._headers = headers
        self._renderer = renderer
        self._tracker = tracker
        self._has_started = False

    async def run(
        self, batches: AsyncGenerator[Batch, None], request_id: str, *, with_usage: bool
    ) -> Exception | None:  # fmt: skip
        """Send outputs as they come; report an error after the first one in the stream, and return it."""
        failure: ChairliftError | None = None
        try:
            async for batch in batches:
                events, failure = self._tracker.take(batch)
                if failure is not None and not self._has_started:
                    raise failure
                await self._write(b"".join([self._renderer.event(number, event) for number, event in events]))
                if failure is not None:
                    raise failure
        except (ClientGone, asyncio.CancelledError):
            raise
        except Exception as error:
            if not self._has_started:
                raise
            payload = orjson.dumps({"error": error_object(error, request_id)})
            await self._write(named_event(b"error", payload), more=False)
            if error_response_of(error) is INTERNAL_ERROR:
                log.error("the stream failed", exc_info=error)
            else:
                log.info("the stream ended: %s", error)
            return error
        finally:
            failure = None  # as in Generation._collect
        last = self._renderer.usage(self._tracker.usage) if with_usage else b""
        await self._write(last + DONE, more=False)
        return None

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        if not body and more:
            return
        if not self._has_started:
            self._has_started = True
            headers = [*STREAM_HEADERS, *self._headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
