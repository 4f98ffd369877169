"""RouterTelemetry: records requests, attempts and replicas as metrics; no other module of the router touches one."""

import math
import time
from collections import deque
from collections.abc import Iterable

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import is_error_code
from chairlift.observability.latency_targets import LatencyTargets
from chairlift.observability.metrics import ROUTER_METRICS, Metrics, current_exemplar
from chairlift.observability.request_counters import OTHER, RequestCounters
from chairlift.router.attempts.actions import RecordOutcome
from chairlift.router.attempts.client_response import ClientResponse
from chairlift.router.discovery.base import SourceState, SourceStatus
from chairlift.router.shared_state.base import SharedStateStatus
from chairlift.web.access_log import AccessRecord
from chairlift.web.middleware import CLIENT_CLOSED_REQUEST
from chairlift.web.outcome_to_request_result import request_result

WINDOW_SECONDS = 60.0
MAX_VALUES = 4096
"""Latencies that are kept; of more in a window the newest count."""


class LatencyWindow:
    """The latencies of the last minute with their times."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=MAX_VALUES)

    def add(self, seconds: float, now: float) -> None:
        """Add one latency."""
        self._values.append((now, seconds))

    def quantile(self, share: float, now: float) -> float | None:
        """Return the smallest latency that at least this share of the window is not above; None without any."""
        values = sorted(seconds for at, seconds in self._values if at > now - WINDOW_SECONDS)
        return values[max(0, math.ceil(share * len(values)) - 1)] if values else None


class RouterTelemetry:
    """The metrics of one router.

    Attributes:
        metrics: the metrics page.
        first_tokens: recent times to the first token.
        inter_tokens: recent inter-token latencies.
        counters: what is counted by model and tenant.
        num_arrivals: admitted requests for tokens since the start.
    """

    def __init__(
        self, more_metrics: frozenset[str] = frozenset(), clock: Clock | None = None,
        targets: LatencyTargets | None = None,
    ) -> None:  # fmt: skip
        """Create the page of the router's metrics and of further ones, which another part writes."""
        self._clock = clock or SystemClock()
        self.metrics = Metrics(ROUTER_METRICS | more_metrics)
        self.counters = RequestCounters(self.metrics, targets or LatencyTargets())
        self.counters.add_model(OTHER)  # at zero, so that the first error of a request without a pool counts
        self.first_tokens, self.inter_tokens = LatencyWindow(), LatencyWindow()
        self.num_arrivals = 0

    def record_response(self, record: AccessRecord) -> None:
        """Count an HTTP response, also as a rejection if it is an error from before any attempt."""
        metrics = self.metrics
        method = record.method if record.method in {"GET", "POST", "OPTIONS"} else "other"
        metrics.counter("http_requests", record.route or "other", method, str(record.status)).inc()
        self.counters.record_response(
            record.route, record.tenant, record.status, was_submitted=record.was_submitted
        )  # fmt: skip
        if record.code and not record.was_submitted and record.status != CLIENT_CLOSED_REQUEST:
            metrics.counter("requests_rejected", record.code).inc()

    def start(self, pool: str, tenant: str, response: ClientResponse, started_at: float) -> "RequestTelemetry":
        """Return what records a request of a tenant for a pool; `started_at` is on the monotonic clock."""
        return RequestTelemetry(self, pool or OTHER, tenant, response, started_at)

    def record_first_token(self, seconds: float) -> None:
        """Observe the time from a request's arrival to its first token."""
        self.metrics.histogram("time_to_first_token_seconds").observe(seconds, current_exemplar())
        self.first_tokens.add(seconds, self._clock.now())

    def record_finished(self, outcome: str, seconds: float, num_attempts: int) -> None:
        """Record the end of a request: "complete", "abort", or an error code, "other" for one of another server."""
        outcome = outcome_label(outcome)
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

    def record_certificate_expiry(self, timestamp: float) -> None:
        """Publish when the router's own certificate expires."""
        self.metrics.gauge("tls_certificate_expiry_timestamp_seconds").set(timestamp)

    def update_gauges(self, num_open: int, num_waiting: int, num_held: int, *, is_ready: bool) -> None:
        """Set the gauges."""
        metrics = self.metrics
        metrics.gauge("requests_open").set(num_open)
        metrics.gauge("admission_waiting_requests").set(num_waiting)
        metrics.gauge("router_held_requests").set(num_held)
        metrics.gauge("ready").set(is_ready)


class RequestTelemetry:
    """Records the first token and the end of one request."""

    def __init__(
        self, telemetry: RouterTelemetry, model: str, tenant: str, response: ClientResponse, started_at: float
    ) -> None:  # fmt: skip
        self._telemetry, self._model, self._tenant, self._response = telemetry, model, tenant, response
        self._started_at, self._first_output_at = started_at, 0.0

    def record_first_output(self, *, is_token: bool) -> None:
        """Record the first output; a whole response without progress events says nothing of its first token."""
        self._first_output_at = time.monotonic()
        if is_token:
            seconds = self._first_output_at - self._started_at
            self._telemetry.record_first_token(seconds)
            self._telemetry.counters.record_ttft(seconds, self._model, self._tenant)

    def record_finished(self, outcome: str, num_attempts: int, prompt_tokens: int, passed_status: int = 0) -> None:
        """Record the end.

        `prompt_tokens` is an estimate. `passed_status` is the status of a replica's error response that was passed on:
        it says what a code of another server does not.
        """
        now, counters, response = time.monotonic(), self._telemetry.counters, self._response
        self._telemetry.record_finished(outcome, now - self._started_at, num_attempts)
        result = request_result(outcome, passed_status)
        counters.record_finished(result, self._model, self._tenant, response.used_tokens(prompt_tokens))
        if not self._first_output_at:
            if outcome != "complete":
                counters.record_no_first_token(result, now - self._started_at, self._model, self._tenant)
        elif (seconds := response.mean_inter_token_seconds) is not None:
            counters.record_itl(seconds, self._model, self._tenant)


def outcome_label(outcome: str) -> str:
    """Return an outcome, "other" for a code of another server: each would be a time series."""
    return outcome if outcome in {"complete", "abort"} or is_error_code(outcome) else OTHER
