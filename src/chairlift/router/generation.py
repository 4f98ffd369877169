"""GenerationRoute: serves a generation route by attempts on replicas, whose stream goes on when one of them is lost."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from chairlift.core.errors import ChairliftError
from chairlift.observability.tracing.tracer import span_within
from chairlift.router.attempts.generation_fields import GenerationFields, read_generation_fields
from chairlift.router.attempts.request_machine import RequestMachine
from chairlift.router.live.request_timelines import HELD, RequestTimeline
from chairlift.router.pool_picker import PoolPicker
from chairlift.router.prompt_prefix_and_length import count_prompt_tokens, pooled_fields
from chairlift.router.proxy.attempt_spans import AttemptSpans
from chairlift.router.proxy.attempt_task import UpstreamRequest
from chairlift.router.proxy.client_writer import ClientWriter
from chairlift.router.proxy.request_proxy import WAITING_FOR_REPLICA, RequestProxy
from chairlift.router.replicas.reservation import Reservation
from chairlift.router.request_fields_and_upstream_request import (
    admin_headers,
    attempt_spans,
    client_address,
    model_member,
    session_key_of,
    timeout_seconds,
    upstream_request_of,
)
from chairlift.router.routed_permit import RoutedPermit, max_output_tokens
from chairlift.router.router import Router
from chairlift.router.telemetry import RequestTelemetry, outcome_label
from chairlift.web.body import ClientGone, Receive, Scope, Send, parse_json_object, read_body
from chairlift.web.disconnect import DisconnectWatcher
from chairlift.web.error_responses import stream_error_event
from chairlift.web.request_info import RequestInfo, request_info
from chairlift.web.stream_keep_alive import StreamKeepAlive
from chairlift.web.write_timeout import WriteTimeout

log = logging.getLogger(__name__)

FIRST_COMMENT_FACTOR = 1.1
"""Part of the time after which a stream begins with a comment: by then a silent replica has begun it, with headers."""

SMALL_BODY_BYTES = 65_536
"""Bodies up to this size are parsed on the event loop, which takes a quarter of a millisecond at most."""


class GenerationRoute:
    """A route that needs the model: its responses are made of tokens, or of the pooled hidden states of texts."""

    def __init__(self, router: Router, *, has_tokens: bool = True) -> None:
        """Serve a route; with `has_tokens` a response goes on behind the tokens of a lost replica."""
        self._router, self._has_tokens = router, has_tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to a replica, and its response to the client. Raises what is wrong before the first byte."""
        router, config = self._router, self._router.config
        started_at = time.monotonic()
        router.lifecycle.check()  # before the body: a client learns at once that no replica is ready
        body = await read_body(scope, receive, max_bytes=config.http.max_body_bytes, seconds=config.http.body_timeout)
        info = request_info(scope)
        info.body_bytes = len(body)
        if info.permit is not None:
            info.permit.set_body_bytes(len(body))
        else:
            router.admission.check(body_bytes=len(body))
        fields = await _parse(body)
        fields = fields if self._has_tokens else pooled_fields(fields)
        router.lifecycle.check()
        session_key = session_key_of(scope, fields, config.session_header, config.session_cookie)
        pool_key = session_key or info.request_id
        is_held = router.must_hold(fields.get("model"), pool_key)
        target = None if is_held else self._target(fields, pool_key)
        timeout = timeout_seconds(scope, fields)
        deadline = None if timeout is None else router.clock.now() + timeout
        async with _client_stream(router, scope, send, is_streamed=fields.get("stream") is True) as stream:
            with (
                router.timelines.begin(info.request_id, info.authenticated.tenant, fields.get("model")) as timeline,
                await RoutedPermit.acquire(info, router.tenants, router.admission, timeout) as admitted,
            ):
                router.telemetry.num_arrivals += 1
                async with DisconnectWatcher(receive) as watcher:
                    if target is None:
                        timeline.begin_wait(HELD, router.clock.now())
                        stream.comment = lambda: WAITING_FOR_REPLICA
                        with span_within(info.trace, "hold"):
                            await router.hold.wait(count_prompt_tokens(fields), timeout)
                        timeline.end_wait(router.clock.now())
                        target = self._target(fields, pool_key)
                    pool, members, generation = target
                    assigned = await router.assigned_replica(pool, session_key)
                    request, prefix = router.routing_request(
                        fields, pool, request_id=info.request_id, client_address=client_address(scope),
                        session_key=session_key, tenant=info.authenticated.tenant, assigned_replica_id=assigned,
                    )  # fmt: skip
                    machine = RequestMachine(
                        generation, config.attempts, router.budget(pool), router.hedging(pool),
                        request_id=info.request_id, deadline=deadline,
                    )  # fmt: skip
                    upstream_request = upstream_request_of(scope, body, members)
                    spans = attempt_spans(scope, fields, members)
                    await admitted.reserve(request.prompt_tokens, max_output_tokens(fields, generation))
                    admitted.machine, timeline.prompt_tokens = machine, request.prompt_tokens
                    picker = PoolPicker(router, request, pool, timeline)
                    telemetry = router.telemetry.start(pool, info.authenticated.tenant, machine.response, started_at)
                    reservation = await self._respond(
                        scope, stream, machine, upstream_request, picker, timeline, telemetry, spans
                    )
                    watcher.response_complete()
                    if reservation is not None:
                        await router.assign_session(pool, session_key, reservation.replica_id, assigned)
                    router.learn_prefix(reservation, prefix, machine.response.delivered.token_ids(0))

    def _target(self, fields: Mapping[str, Any], key: str) -> tuple[str, Mapping[str, Any], GenerationFields]:
        """Return the pool, the members to add to the body, and what an attempt needs. Raises what is wrong."""
        pool = self._router.choose_pool(fields.get("model"), key)
        members = model_member(fields, pool)
        alias = (fields.get("model") or "") if members else ""
        if not self._has_tokens:
            return pool, members, GenerationFields(alias=alias)
        return pool, members, read_generation_fields(fields, self._router.random, alias)

    async def _respond(
        self, scope: Scope, stream: StreamKeepAlive, machine: RequestMachine, request: UpstreamRequest,
        picker: "PoolPicker",
        timeline: RequestTimeline, telemetry: RequestTelemetry, spans: AttemptSpans | None,
    ) -> Reservation | None:  # fmt: skip
        """Respond, and return the reservation that the response began with."""
        router, info = self._router, request_info(scope)
        outcome = "abort"
        proxy = RequestProxy(
            machine, request, router.upstream, picker, ClientWriter(stream.send, stream=stream), router.clock.now,
            partial(_on_first_output, router, telemetry, timeline, info), partial(admin_headers, scope), spans,
        )  # fmt: skip
        stream.head, stream.comment = lambda: proxy.head, lambda: proxy.comment
        info.was_submitted = True
        router.open_proxies.add(proxy)
        try:
            await proxy.run()
            outcome = proxy.error_code or "complete"
            return proxy.reservation
        except ChairliftError as error:
            outcome = "abort" if isinstance(error, ClientGone) else error.code
            raise
        finally:
            router.open_proxies.discard(proxy)
            timeline.outcome = outcome
            telemetry.record_finished(outcome, proxy.num_attempts, picker.prompt_tokens, proxy.passed_status)
            if (trace := info.trace) is not None:
                trace.server.attributes["chairlift.outcome"] = outcome_label(outcome)
                if proxy.error_code and not proxy.passed_status:  # within a response whose status was 200
                    trace.server.fail(outcome)


@asynccontextmanager
async def _client_stream(
    router: Router, scope: Scope, send: Send, *, is_streamed: bool
) -> AsyncIterator[StreamKeepAlive]:
    """Send the client's response; an error after a comment has begun a stream is the last event of that stream."""
    http = router.config.http
    seconds = http.sse_ping_interval if is_streamed else 0.0
    first_seconds = FIRST_COMMENT_FACTOR * seconds
    with (
        WriteTimeout(scope, send, http.write_timeout) as timed,
        StreamKeepAlive(timed.send, seconds, first_seconds=first_seconds) as stream,
    ):
        try:
            yield stream
        except ChairliftError as error:
            if isinstance(error, ClientGone) or not stream.is_open:
                raise
            log.info("the stream ended: %s", error)
            event = stream_error_event(error, request_info(scope).request_id)
            await stream.send({"type": "http.response.body", "body": event, "more_body": False})


async def _parse(body: bytes) -> dict[str, Any]:
    """Parse a body, a large one in another thread. Raises MalformedRequest."""
    if len(body) <= SMALL_BODY_BYTES:
        return parse_json_object(body)
    return await asyncio.to_thread(parse_json_object, body)


def _on_first_output(
    router: Router, telemetry: RequestTelemetry, timeline: RequestTimeline, info: RequestInfo, is_token: bool
) -> None:  # fmt: skip
    timeline.record_first_byte(router.clock.now())
    telemetry.record_first_output(is_token=is_token)
    if is_token:  # other outputs say nothing of the first token
        info.first_token_at = time.monotonic()
        if info.trace is not None:
            info.trace.server.add_event("first_token")
    if info.permit is not None:
        info.permit.mark_running()
