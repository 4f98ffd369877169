"""Span and RequestTrace: the spans of one sampled request in one process; every time is in monotonic seconds."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple

from chairlift.observability.tracing.trace_context import TraceContext

AttributeValue = str | bool | int | float | Sequence[str]

MAX_EVENTS = 128
"""Events of a span, as many as OpenTelemetry allows by default; a request may be preempted more often."""

MAX_VALUE_CHARS = 256
"""Characters of an attribute that a client decides, such as the name of a model."""


class SpanKind(Enum):
    """What a span stands for; the values are those of OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class SpanEvent(NamedTuple):
    """A moment within a span."""

    name: str
    at: float
    attributes: Mapping[str, AttributeValue]


@dataclass(slots=True, eq=False)
class Span:
    """One piece of work of a request.

    Attributes:
        name: what it is, from a small set of names.
        kind: server, client or internal.
        context: its place in the trace.
        parent_id: id of the span that it belongs to, "" for none.
        started_at: when it began.
        ended_at: when it ended; None while it goes on.
        attributes: what is known of it; no prompt and no output.
        events: moments within it.
        error_type: what has failed, from a small set of codes; "" for nothing.
    """

    name: str
    kind: SpanKind
    context: TraceContext
    parent_id: str
    started_at: float
    ended_at: float | None = None
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    events: list[SpanEvent] = field(default_factory=list)
    error_type: str = ""

    def add_event(
        self, name: str, at: float | None = None, attributes: Mapping[str, AttributeValue] | None = None
    ) -> None:  # fmt: skip
        """Add an event, by default one of now; the first MAX_EVENTS are kept."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(SpanEvent(name, time.monotonic() if at is None else at, attributes or {}))

    def fail(self, error_type: str) -> None:
        """Mark the span as failed; the first error counts."""
        self.error_type = self.error_type or error_type
        self.attributes.setdefault("error.type", error_type)

    def end(self, at: float | None = None) -> None:
        """End the span, by default now; only the first end counts."""
        if self.ended_at is None:
            self.ended_at = time.monotonic() if at is None else at


class SpanIds:
    """Makes random ids of traces and spans."""

    def __init__(self, random: Random | None = None) -> None:
        """Use the given source, by default one that the system seeds once: a system call for each id costs more."""
        self._bits = (random or Random()).getrandbits

    def trace_id(self) -> str:
        """Return a new id of a trace."""
        return f"{self._bits(128) or 1:032x}"

    def span_id(self) -> str:
        """Return a new id of a span."""
        return f"{self._bits(64) or 1:016x}"


class RequestTrace:
    """The spans of one sampled request.

    Attributes:
        server: the span of the whole request.
        spans: all spans, the one of the request first.
        started_at: when the trace began in this process.
        epoch_offset_ns: nanoseconds since 1970 of the zero of monotonic seconds.
    """

    def __init__(self, server: Span, ids: SpanIds) -> None:
        self.server, self._ids = server, ids
        self.spans = [server]
        self.started_at = time.monotonic()
        self.epoch_offset_ns = time.time_ns() - time.monotonic_ns()

    @property
    def trace_id(self) -> str:
        """Id of the trace."""
        return self.server.context.trace_id

    def start(self, name: str, *, kind: SpanKind = SpanKind.INTERNAL, at: float | None = None) -> Span:
        """Start a span within that of the request, by default now."""
        own, started_at = self.server.context, time.monotonic() if at is None else at
        context = TraceContext(own.trace_id, self._ids.span_id(), own.flags, own.state)
        span = Span(name, kind, context, own.span_id, started_at)
        self.spans.append(span)
        return span

    def add(
        self, name: str, started_at: float, ended_at: float, attributes: Mapping[str, AttributeValue] | None = None
    ) -> Span:  # fmt: skip
        """Add a span that has ended; one that would end before its start has no length."""
        span = self.start(name, at=started_at)
        span.attributes |= attributes or {}
        span.end(max(started_at, ended_at))
        return span
