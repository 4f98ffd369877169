"""SpanQueue: exports the spans of finished requests in a background thread; a full queue drops traces."""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from chairlift.observability.tracing.span import RequestTrace

log = logging.getLogger(__name__)

CLOSE_SECONDS = 3.0
"""Seconds that the last export may take at the end of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Limits of the queue; the defaults are those of OpenTelemetry's batch processor, OTEL_BSP_*.

    Attributes:
        max_spans: spans that may wait.
        batch_spans: spans after which an export begins at once.
        delay_seconds: seconds for which a span waits for further ones.
    """

    max_spans: int = 2048
    batch_spans: int = 512
    delay_seconds: float = 5.0


class SpanExporter(Protocol):
    """Sends spans to a collector."""

    @property
    def target(self) -> str:
        """The address of the collector, for people."""
        ...

    def export(self, traces: Sequence[RequestTrace]) -> str:
        """Send the spans of some traces, which may take seconds; return why that failed, "" if it did not."""
        ...

    def close(self) -> None:
        """Give up an export that is in progress."""
        ...


class SpanQueue:
    """Takes traces from one thread without blocking; its own thread exports them.

    A collector that does not answer costs a warning, and the spans that it does not take.
    """

    def __init__(self, exporter: SpanExporter, limits: QueueLimits, close_seconds: float = CLOSE_SECONDS) -> None:
        """Start the thread."""
        self._exporter, self._limits, self._close_seconds = exporter, limits, close_seconds
        self._traces: deque[RequestTrace] = deque()
        self._num_added = self._num_taken = 0  # each is written by one thread
        self.num_dropped = 0
        self._wake = threading.Event()
        self._is_closed = self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="chairlift-spans", daemon=True)
        self._thread.start()

    def add(self, trace: RequestTrace) -> None:
        """Queue the spans of a finished request; they are dropped after close() and while the queue is full."""
        num_spans, num_waiting = len(trace.spans), self._num_added - self._num_taken
        if self._is_closed or num_waiting + num_spans > self._limits.max_spans:
            self.num_dropped += num_spans
            return
        self._traces.append(trace)
        self._num_added += num_spans
        if num_waiting + num_spans >= self._limits.batch_spans:
            self._wake.set()

    def close(self) -> None:
        """Export what waits, for CLOSE_SECONDS at most. May be called more than once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._wake.set()
        self._thread.join(self._close_seconds)
        self._exporter.close()
        lost = self.num_dropped + self._num_added - self._num_taken
        if lost:
            log.warning("%d spans were not exported to %s", lost, self._exporter.target)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._limits.delay_seconds)
            self._wake.clear()
            self._export_all()
        self._export_all()

    def _export_all(self) -> None:
        while self._traces:
            batch, num_spans = list[RequestTrace](), 0
            while self._traces and num_spans < self._limits.batch_spans:
                batch.append(self._traces.popleft())
                num_spans += len(batch[-1].spans)
            failure = self._export(batch)
            self._num_taken += num_spans
            if failure:
                self.num_dropped += num_spans
            if bool(failure) != self._is_failing:
                self._is_failing = bool(failure)
                self._report(failure)

    def _export(self, batch: Sequence[RequestTrace]) -> str:
        try:
            return self._exporter.export(batch)
        except Exception as error:  # of the library; the next batch may succeed
            return f"{type(error).__name__}: {error}"

    def _report(self, failure: str) -> None:
        """Log that exports fail, or that they work again; nothing about the failures in between."""
        target = self._exporter.target
        if failure:
            log.warning("the spans of traces cannot be exported to %s and are dropped: %s", target, failure)
        else:
            log.warning("the spans of traces are exported to %s again", target)
