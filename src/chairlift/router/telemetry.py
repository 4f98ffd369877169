"""RouterTelemetry: records requests, attempts and replicas as metrics; no other module of the router touches one."""

from collections.abc import Iterable

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import is_error_code
from chairlift.observability.metrics import ROUTER_METRICS, Metrics, current_exemplar
from chairlift.router.attempts.actions import RecordOutcome
from chairlift.router.discovery.base import SourceState, SourceStatus
from chairlift.router.latency_window import LatencyWindow
from chairlift.router.shared_state.base import SharedStateStatus
from chairlift.web.access_log import AccessRecord
from chairlift.web.middleware import CLIENT_CLOSED_REQUEST


class RouterTelemetry:
    """The metrics of one router.

    Attributes:
        metrics: the metrics page.
        first_tokens: recent times to the first token.
        inter_tokens: recent inter-token latencies.
        num_arrivals: admitted requests for tokens since the start.
    """

    def __init__(self, more_metrics: frozenset[str] = frozenset(), clock: Clock | None = None) -> None:
        """Create the page of the router's metrics and of further ones, which another part writes."""
        self._clock = clock or SystemClock()
        self.metrics = Metrics(ROUTER_METRICS | more_metrics)
        self.first_tokens, self.inter_tokens = LatencyWindow(), LatencyWindow()
        self.num_arrivals = 0

    def record_response(self, record: AccessRecord) -> None:
        """Count an HTTP response, also as a rejection if it is an error from before any attempt."""
        metrics = self.metrics
        method = record.method if record.method in {"GET", "POST", "OPTIONS"} else "other"
        metrics.counter("http_requests", record.route or "other", method, str(record.status)).inc()
        if record.code and not record.was_submitted and record.status != CLIENT_CLOSED_REQUEST:
            metrics.counter("requests_rejected", record.code).inc()

    def record_first_token(self, seconds: float) -> None:
        """Observe the time from a request's arrival to its first token."""
        self.metrics.histogram("time_to_first_token_seconds").observe(seconds, current_exemplar())
        self.first_tokens.add(seconds, self._clock.now())

    def record_finished(self, outcome: str, seconds: float, num_attempts: int) -> None:
        """Record the end of a request: "complete", "abort", or an error code, "other" for one of another server."""
        if outcome not in {"complete", "abort"} and not is_error_code(outcome):
            outcome = "other"  # a replica of another server decides its codes, and each would be a time series
        metrics = self.metrics
        metrics.counter("requests_finished", outcome).inc()
        metrics.histogram("e2e_request_latency_seconds").observe(seconds, current_exemplar())
        metrics.histogram("router_request_attempts").observe(num_attempts)

    def record_attempt(self, outcome: RecordOutcome) -> None:
        """Count an attempt that has ended."""
        self.metrics.counter("router_attempts", outcome.outcome).inc()
        if outcome.inter_token_seconds is not None:
            self.inter_tokens.add(outcome.inter_token_seconds, self._clock.now())

    def record_move(self) -> None:
        """Count a request that moves to a replica that has become ready."""
        self.metrics.counter("router_moved_requests").inc()

    def update_sources(self, statuses: Iterable[SourceStatus]) -> None:
        """Publish how the discovery sources do."""
        for status in statuses:
            self.metrics.gauge("router_source_up", status.name).set(status.state is SourceState.UP)
            self.metrics.gauge("router_source_replicas", status.name).set(status.num_endpoints)
            self.metrics.raise_to(status.num_failures, "router_source_failures", status.name)

    def update_shared_state(self, status: SharedStateStatus) -> None:
        """Publish whether the state is shared with the other routers."""
        self.metrics.gauge("router_shared_state_up").set(status.is_connected)
        self.metrics.raise_to(status.num_outages, "router_shared_state_outages")

    def update_gauges(self, num_open: int, num_waiting: int, num_held: int, *, is_ready: bool) -> None:
        """Set the gauges."""
        metrics = self.metrics
        metrics.gauge("requests_open").set(num_open)
        metrics.gauge("admission_waiting_requests").set(num_waiting)
        metrics.gauge("router_held_requests").set(num_held)
        metrics.gauge("ready").set(is_ready)
