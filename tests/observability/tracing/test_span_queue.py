"""SpanQueue: a bounded queue, one warning for a collector that is down, and an end that takes a bounded time."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from chairlift.observability.tracing.span import RequestTrace, Span, SpanIds, SpanKind
from chairlift.observability.tracing.span_queue import QueueLimits, SpanQueue
from chairlift.observability.tracing.trace_context import TraceContext

WAIT_SECONDS = 20.0
SOON = QueueLimits(delay_seconds=0.001)
NEVER = 600.0


def make_trace(num_spans: int = 1) -> RequestTrace:
    trace = RequestTrace(Span("a", SpanKind.SERVER, TraceContext("1" * 32, "2" * 16, 1), "", 0.0), SpanIds())
    for _ in range(num_spans - 1):
        trace.start("b")
    return trace


@dataclass
class FakeExporter:
    """Keeps the sizes of the batches; `failure` is what exports return, `gate` blocks them."""

    target: str = "http://collector"
    failure: str = ""
    error: Exception | None = None
    gate: threading.Event | None = None
    batches: list[int] = field(default_factory=list)
    is_closed: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def export(self, traces: Sequence[RequestTrace]) -> str:
        with self.changed:
            self.batches.append(sum(len(trace.spans) for trace in traces))
            self.changed.notify_all()
        if self.gate is not None:
            self.gate.wait(WAIT_SECONDS)
        if self.error is not None:
            raise self.error
        return self.failure

    def close(self) -> None:
        self.is_closed = True

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_SECONDS)


def test_a_trace_is_exported_after_the_delay() -> None:
    exporter = FakeExporter()
    queue = SpanQueue(exporter, SOON)
    queue.add(make_trace(3))
    exporter.wait_until(lambda: exporter.batches == [3])
    queue.close()
    assert exporter.is_closed and queue.num_dropped == 0


def test_a_full_batch_is_exported_at_once() -> None:
    exporter = FakeExporter()
    queue = SpanQueue(exporter, QueueLimits(batch_spans=4, delay_seconds=NEVER))
    queue.add(make_trace(2))
    queue.add(make_trace(2))
    exporter.wait_until(lambda: exporter.batches == [4])
    queue.close()


def test_the_end_exports_what_waits_in_batches_and_takes_no_more() -> None:
    exporter = FakeExporter()
    queue = SpanQueue(exporter, QueueLimits(batch_spans=5, max_spans=100, delay_seconds=NEVER))
    exporter.gate = threading.Event()
    for _ in range(4):
        queue.add(make_trace(3))
    exporter.gate.set()
    queue.close()
    assert sum(exporter.batches) == 12 and max(exporter.batches) <= 7
    queue.add(make_trace())
    queue.close()
    assert sum(exporter.batches) == 12 and queue.num_dropped == 1


def test_a_full_queue_drops_whole_traces_and_counts_their_spans(caplog: pytest.LogCaptureFixture) -> None:
    exporter = FakeExporter()
    queue = SpanQueue(exporter, QueueLimits(max_spans=4, batch_spans=512, delay_seconds=NEVER))
    queue.add(make_trace(3))
    queue.add(make_trace(2))
    queue.add(make_trace(1))
    assert queue.num_dropped == 2
    with caplog.at_level(logging.WARNING, "chairlift"):
        queue.close()
    assert exporter.batches == [4]
    assert [record.getMessage() for record in caplog.records] == ["2 spans were not exported to http://collector"]


def test_a_collector_that_is_down_costs_one_warning_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    exporter = FakeExporter(failure="connection refused")
    queue = SpanQueue(exporter, SOON)
    with caplog.at_level(logging.WARNING, "chairlift"):
        for number in range(3):
            queue.add(make_trace())
            exporter.wait_until(lambda number=number: len(exporter.batches) == number + 1)
        exporter.failure = ""
        queue.add(make_trace())
        exporter.wait_until(lambda: len(exporter.batches) == 4)
        queue.close()
    first, second, last = [record.getMessage() for record in caplog.records]
    assert "connection refused" in first and "cannot be exported to http://collector" in first
    assert second.endswith("again") and last.startswith("3 spans")


def test_an_error_of_the_library_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    exporter = FakeExporter(error=ValueError("bad"))
    queue = SpanQueue(exporter, SOON)
    queue.add(make_trace())
    exporter.wait_until(lambda: len(exporter.batches) == 1)
    queue.add(make_trace())
    exporter.wait_until(lambda: len(exporter.batches) == 2)
    queue.close()
    assert "ValueError: bad" in caplog.records[0].getMessage()


def test_the_end_does_not_wait_for_a_collector_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    exporter = FakeExporter(gate=threading.Event())
    queue = SpanQueue(exporter, SOON, close_seconds=0.01)
    queue.add(make_trace(2))
    exporter.wait_until(lambda: len(exporter.batches) == 1)
    queue.close()
    assert exporter.is_closed and "2 spans were not exported" in caplog.records[-1].getMessage()
    assert exporter.gate is not None
    exporter.gate.set()
