"""Span and RequestTrace: ids, ends that count once, and bounded events."""

import time
from random import Random

from chairlift.observability.tracing.span import MAX_EVENTS, RequestTrace, Span, SpanIds, SpanKind
from chairlift.observability.tracing.trace_context import TraceContext


def make_trace() -> RequestTrace:
    return RequestTrace(
        Span("a", SpanKind.SERVER, TraceContext("1" * 32, "2" * 16, 1, "k=v"), "", 5.0), SpanIds(Random(1))
    )


def test_a_child_belongs_to_the_requests_span_and_trace() -> None:
    trace = make_trace()
    child = trace.start("b", kind=SpanKind.CLIENT, at=6.0)
    assert child.parent_id == "2" * 16 and child.context.trace_id == trace.trace_id == "1" * 32
    assert child.context.state == "k=v" and child.context.is_sampled and child.context.span_id != "2" * 16
    assert trace.spans == [trace.server, child] and child.started_at == 6.0 and child.ended_at is None


def test_only_the_first_end_and_the_first_error_count() -> None:
    span = make_trace().server
    span.end(7.0)
    span.end(8.0)
    span.fail("one")
    span.fail("two")
    assert (span.ended_at, span.error_type, span.attributes) == (7.0, "one", {"error.type": "one"})


def test_a_span_that_would_end_before_its_start_has_no_length() -> None:
    span = make_trace().add("queue", 6.0, 5.5, {"reason": "blocks"})
    assert (span.started_at, span.ended_at, span.attributes) == (6.0, 6.0, {"reason": "blocks"})


def test_a_request_that_is_preempted_without_end_has_a_bounded_span() -> None:
    span = make_trace().server
    for number in range(MAX_EVENTS + 5):
        span.add_event("preempted", float(number), {"number": number})
    assert len(span.events) == MAX_EVENTS and span.events[-1] == ("preempted", MAX_EVENTS - 1, {"number": 127})


def test_monotonic_times_are_converted_to_those_since_1970() -> None:
    trace = make_trace()
    now_ns = trace.epoch_offset_ns + round(time.monotonic() * 1e9)
    assert abs(now_ns - time.time_ns()) < 60e9


def test_ids_have_their_length_and_are_never_zero() -> None:
    class Zeros(Random):
        def getrandbits(self, k: int, /) -> int:
            return 0

    ids = SpanIds(Zeros())
    assert ids.trace_id() == "0" * 31 + "1" and ids.span_id() == "0" * 15 + "1"
    assert len(SpanIds().trace_id()) == 32 and SpanIds().span_id() != SpanIds().span_id()
