"""Tracer: decides which requests are traced, and makes the span of each of them by OpenTelemetry's HTTP conventions."""

from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from chairlift.observability.logging import current_trace_id
from chairlift.observability.tracing.span import MAX_VALUE_CHARS, RequestTrace, Span, SpanIds, SpanKind
from chairlift.observability.tracing.trace_context import (
    RANDOM,
    SAMPLED,
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    parse_trace_context,
)

Scope = MutableMapping[str, Any]

KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})
CLIENT_ERROR_STATUS, ERROR_STATUS = 400, 500
"""Statuses from these on are errors of the client and of the server; a server span has failed for the latter only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Which requests are traced.

    Attributes:
        ratio: share of the traces that begin here, 0 to 1.
        follows_parent: whether a request with a valid traceparent is traced if and only if its sender has said so.
    """

    ratio: float = 1.0
    follows_parent: bool = True


class TraceSink(Protocol):
    """Takes the traces of finished requests."""

    def add(self, trace: RequestTrace) -> None:
        """Take a trace without blocking."""
        ...

    def close(self) -> None:
        """Deliver what waits, within a bounded time."""
        ...


class Tracer:
    """Traces the requests of one process."""

    def __init__(self, sampling: SamplingConfig, sink: TraceSink, ids: SpanIds | None = None) -> None:
        self._follows_parent = sampling.follows_parent
        self._bound = round(sampling.ratio * 2**64)  # as OpenTelemetry's sampler by the ratio of trace ids
        self._sink, self._ids = sink, ids or SpanIds()

    def start_request(self, scope: Scope) -> RequestTrace | None:
        """Start the trace of an HTTP request and return it; None if the request is not sampled.

        The scope's headers then carry the context that further servers get: the client's own one, unless it is
        malformed or the decision is another one.
        """
        headers = scope["headers"]
        parents = [value for name, value in headers if name == TRACEPARENT]
        states = [value for name, value in headers if name == TRACESTATE]
        parent = parse_trace_context(parents, states) if parents else None
        trace_id = self._ids.trace_id() if parent is None else parent.trace_id
        if parent is not None and self._follows_parent:
            is_sampled = parent.is_sampled
        else:
            is_sampled = int(trace_id[16:], 16) < self._bound
        if not is_sampled and parent is not None and not parent.is_sampled and (parent.state or not states):
            return None
        flags, state = (0, "") if parent is None else (parent.flags & RANDOM, parent.state)
        context = TraceContext(trace_id, self._ids.span_id(), flags | (SAMPLED if is_sampled else 0), state)
        if parents or states:
            headers = [pair for pair in headers if pair[0] not in (TRACEPARENT, TRACESTATE)]
        own = [(TRACEPARENT, context.traceparent.encode()), *([(TRACESTATE, state.encode())] if state else ())]
        scope["headers"] = [*headers, *own]
        return self._trace(scope, context, "" if parent is None else parent.span_id) if is_sampled else None

    def _trace(self, scope: Scope, context: TraceContext, parent_id: str) -> RequestTrace:
        span = Span("HTTP", SpanKind.SERVER, context, parent_id, 0.0, attributes=_request_attributes(scope))
        trace = RequestTrace(span, self._ids)
        span.started_at = trace.started_at
        current_trace_id.set(context.trace_id)
        return trace

    def end_request(self, trace: RequestTrace, route: str, status: int, code: str) -> None:
        """End a request's trace; `status` is 0 if its client left, `code` that of the error that ended it."""
        span, attributes = trace.server, trace.server.attributes
        method = str(attributes["http.request.method"])
        span.name = " ".join(filter(None, ("HTTP" if method == "_OTHER" else method, route)))
        if route:
            attributes["http.route"] = route
        if status:
            attributes["http.response.status_code"] = status
        else:
            attributes["chairlift.outcome"] = "abort"
        if code:
            attributes["chairlift.error.code"] = code
        if status >= ERROR_STATUS or (status and code and status < CLIENT_ERROR_STATUS):  # the last: it was cut
            span.fail(code or str(status))
        for each in reversed(trace.spans):
            each.end()
        self._sink.add(trace)

    def close(self) -> None:
        """Deliver what waits, within a bounded time. May be called more than once."""
        self._sink.close()


def _request_attributes(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request's head says; neither its query nor its client's address, which may be personal."""
    method, headers = str(scope["method"]), dict(scope["headers"])
    attributes: dict[str, Any] = {
        "http.request.method": method if method in KNOWN_METHODS else "_OTHER",
        "url.path": str(scope["path"])[:MAX_VALUE_CHARS], "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
    }  # fmt: skip
    if agent := headers.get(b"user-agent"):
        attributes["user_agent.original"] = agent.decode("latin-1")[:MAX_VALUE_CHARS]
    if server := scope.get("server"):
        attributes["server.address"], attributes["server.port"] = str(server[0]), server[1] or 0
    return attributes


class _RunningSpan:
    """Ends a span when its context is left."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._span.end()


def span_within(trace: RequestTrace | None, name: str) -> AbstractContextManager[Span | None]:
    """Return a context whose duration is a span of the trace; it does nothing for a request that is not sampled."""
    return nullcontext() if trace is None else _RunningSpan(trace.start(name))
