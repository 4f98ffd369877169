"""AdmittedRequest, prepare and Generation: a request's steps from its admission to its response, streamed or whole."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import orjson

from chairlift.core.errors import ChairliftError, DeadlineUnreachable, Overloaded, QueueFull
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.outputs import RequestOutput
from chairlift.observability.tracing.tracer import span_within
from chairlift.protocol.sse import DONE, named_event
from chairlift.server.openai.base_request import BaseRequest
from chairlift.server.openai.output.generation_spans import GenerationSpans
from chairlift.server.openai.output.generation_tracker import Batch, GenerationTracker
from chairlift.server.openai.output.stream_writer import StreamWriter
from chairlift.server.openai.response_renderers import Renderer
from chairlift.server.replica import Replica
from chairlift.web.admission import Permit
from chairlift.web.admit import admit
from chairlift.web.body import ClientGone, Scope, Send
from chairlift.web.error_responses import Header
from chairlift.web.request_info import request_info
from chairlift.web.send_response import send_bytes
from chairlift.web.stream_keep_alive import EVENT_STREAM_HEADERS, StreamKeepAlive
from chairlift.web.tenant_rate_limiter import TenantReservation
from chairlift.web.write_timeout import WriteTimeout

SHORT_TOKENS = 4096
"""Tokens of a response, times its logprobs, that the event loop encodes as JSON itself: that takes a few ms."""


SHORT_EMBEDDING_BYTES = 65_536
"""Bytes of embeddings, as float32, that the event loop encodes itself."""


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
        """Return a renderer that writes the response, or its progress; each writes only one of them."""
        ...


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
        self.tracker: GenerationTracker | None = None
        self.stream_error: Exception | None = None

    @classmethod
    def begin(cls, replica: Replica, scope: Scope, timeout: float | None) -> Self:
        """Admit a request by the server's state, its tenant's limits and the expected wait.

        Raises the error of the state, RateLimited and Overloaded.
        """
        replica.lifecycle.check()
        info = request_info(scope)
        reservation = replica.tenants.begin(info.authenticated.tenant)
        return cls(replica, scope, reservation, admit(info, replica.admission, timeout, reservation))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _refund_load_rejection(self.reservation, error)
        stream_error, self.stream_error = self.stream_error, None  # drops the frames that its traceback refers to
        if self.tracker is not None:
            self.tracker.end(request_info(self.scope).request_id, stream_error if error is None else error)
            return
        self.permit.end()
        if isinstance(error, ClientGone):
            self.replica.telemetry.record_abort("client")


def _refund_load_rejection(reservation: TenantReservation, error: BaseException | None) -> None:
    """Refund a request that was rejected because of other requests' load, before the reservation ends."""
    if isinstance(error, Overloaded | QueueFull | DeadlineUnreachable):
        reservation.refund_request()


async def prepare(
    admitted: AdmittedRequest, handler: EndpointHandler, request: BaseRequest, started_at: float, *,
    reports_progress: bool = False, is_from_router: bool = False,
) -> "Generation":  # fmt: skip
    """Create a body's engine requests and reserve their tokens. Raises InvalidRequest, RateLimited.

    `reports_progress` is whether the response is a stream of the tokens, then the whole body; see Generation.
    """
    replica, scope = admitted.replica, admitted.scope
    info = request_info(scope)
    with span_within(info.trace, "tokenize"):
        processors = await replica.bodies.run_by_body_size(handler.processors, scope, is_quick=handler.is_quick)
    prompt = sum(len(each.request.prompt_token_ids) for each in processors)
    max_output_tokens = sum(each.request.params.max_tokens or 0 for each in processors) * request.params.num_choices
    admitted.permit.set_prompt_tokens(prompt)
    num_resumed = sum(len(tokens) for each in processors for tokens in each.request.resume)  # charged when generated
    admitted.reservation.reserve(prompt + max_output_tokens - num_resumed)
    renderer = handler.renderer(processors)
    is_incremental = request.stream or reports_progress
    spans = None if info.trace is None else GenerationSpans(info.trace, scope["path"], request, processors)
    is_ranked = request.params.num_choices > request.params.n  # would start again: nothing of it was delivered
    delivers_ids = (reports_progress and not is_ranked) or (request.stream and request.return_token_ids)
    is_resumable = is_from_router and delivers_ids
    tracker = GenerationTracker(
        replica.telemetry, admitted.permit, started_at, processors, request, is_incremental=is_incremental, spans=spans,
        tenant=info.authenticated.tenant, is_from_router=is_from_router, is_resumable=is_resumable,
    )  # fmt: skip
    admitted.tracker = tracker
    info.was_submitted = True
    progress = handler.renderer(processors) if reports_progress else None
    return Generation(replica, scope, request, processors, renderer, tracker, progress, is_resumable)


@dataclass(frozen=True, slots=True)
class Generation:
    """The prepared engine requests of one HTTP request, with the renderer of its response.

    Attributes:
        progress: renders the tokens of a response that is not streamed, as they come; None without that header.
        is_resumable: whether a router can resume the request on another replica.
    """

    replica: Replica
    scope: Scope
    request: BaseRequest
    processors: list[OutputProcessor]
    renderer: Renderer
    tracker: GenerationTracker
    progress: Renderer | None = None
    is_resumable: bool = False

    def run(self) -> AsyncGenerator[Batch, None]:
        """Run the engine requests; yields their events in batches. Raises the engine's rejection."""
        return self.replica.llm.run(self.processors, at_once=self.request.stream or self.progress is not None)

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Let a drain hand the request over to another replica while the context is open, if a router can resume it."""
        ids = [processor.request.request_id for processor in self.processors] if self.is_resumable else []
        with self.replica.handover.registered(ids):
            yield

    async def respond(
        self, batches: AsyncGenerator[Batch, None], send: Send, headers: Sequence[Header]
    ) -> Exception | None:
        """Send the response; return an error that a stream has reported to the client."""
        if not self.request.stream and self.progress is None:
            await self._collect(batches)
            request_info(self.scope).first_token_at = self.tracker.first_token_at
            await send_bytes(send, await self._encode(), headers=[*headers])
            return None
        render, end = (
            (self.renderer.event, self._end_of_stream)
            if self.progress is None
            else (self.progress.progress, self._end_of_progress)
        )
        head, http = [*EVENT_STREAM_HEADERS, *headers], self.replica.config.http
        with (
            WriteTimeout(self.scope, send, http.write_timeout) as timed,
            StreamKeepAlive(
                timed.send, http.sse_ping_interval, head=lambda: head, comment=self._comment
            ) as stream,
        ):  # fmt: skip
            writer = StreamWriter(stream, head, render, self.tracker)
            return await writer.run(batches, request_info(self.scope).request_id, end)

    def _comment(self) -> bytes:
        """Return the comment of a silent stream; b"" while the engine hangs, so that routers and clients give it up."""
        return b"" if self.replica.service.client.is_hanging else self.tracker.comment()

    async def _end_of_stream(self) -> bytes:
        return (self.renderer.usage(self.tracker.usage) if self.request.include_usage else b"") + DONE

    async def _end_of_progress(self) -> bytes:
        return named_event(b"response", await self._encode())

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
        results = [processor.result() for processor in self.processors]
        body = partial(_encode_response, self.renderer, results)
        usage, params = self.tracker.usage, self.request.params
        tokens = usage.completion_tokens + (usage.prompt_tokens if params.echo else 0)
        embedding_bytes = sum(len(result.embedding) for result in results)
        is_long = tokens * (1 + (params.logprobs or 0)) > SHORT_TOKENS or embedding_bytes > SHORT_EMBEDDING_BYTES
        return await self.replica.bodies.in_thread(body) if is_long else body()


def _encode_response(renderer: Renderer, results: list[RequestOutput]) -> bytes:
    return orjson.dumps(renderer.full_response(results), option=orjson.OPT_SERIALIZE_NUMPY)
