"""AttemptSpans: makes one span for each attempt of a sampled request, and the context that its replica gets."""

import time
from dataclasses import replace
from urllib.parse import urlsplit

from chairlift.observability.tracing.gen_ai_attributes import gen_ai_attributes
from chairlift.observability.tracing.span import AttributeValue, RequestTrace, Span, SpanKind
from chairlift.router.attempts.actions import RecordOutcome, SendAttempt
from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.proxy.attempt_task import UpstreamRequest

PURPOSE_EVENTS = {"hedge": "hedged", "handover": "handed_over", "move": "moved"}
"""Event of the request when an attempt with this purpose begins."""

ERROR_STATUS = 400
"""Statuses from this one on are errors: of a client span, and of a request."""


class AttemptSpans:
    """The spans of the attempts of one request."""

    def __init__(self, trace: RequestTrace, path: str, model: object) -> None:
        """`model` is the one that replicas are asked for, and None for a request without one."""
        self._trace, self._attributes = trace, gen_ai_attributes(path, model)
        self._spans: dict[int, Span] = {}

    def start(self, action: SendAttempt, request: UpstreamRequest) -> UpstreamRequest:
        """Start the span of an attempt; return the request with the span's context."""
        names = (self._attributes.get(f"gen_ai.{name}") for name in ("operation.name", "request.model"))
        span = self._trace.start(" ".join(str(each) for each in names if each) or request.method, kind=SpanKind.CLIENT)
        self._spans[action.attempt] = span
        address, is_resumed = urlsplit(action.replica_id), "resume" in action.members
        span.attributes |= self._attributes | {
            "http.request.method": request.method, "server.address": address.hostname or "",
            "server.port": address.port or (443 if address.scheme == "https" else 80),
            "chairlift.replica": action.replica_id, "chairlift.attempt.number": action.attempt,
            "chairlift.attempt.purpose": action.purpose, "chairlift.attempt.resumed": is_resumed,
        }  # fmt: skip
        if action.attempt > 1:
            span.attributes["http.request.resend_count"] = action.attempt - 1
        facts: dict[str, AttributeValue] = {"replica": action.replica_id, "attempt": action.attempt}
        if action.purpose in PURPOSE_EVENTS:
            self._trace.server.add_event(PURPOSE_EVENTS[action.purpose], attributes=facts)
        if is_resumed:
            self._trace.server.add_event("resumed", attributes=facts)
        return replace(request, traceparent=span.context.traceparent)

    def end(self, outcome: RecordOutcome, status: int, now: float) -> None:
        """End an attempt; `status` is that of its response, 0 for none, and `now` is on the clock of `outcome`."""
        span = self._spans.pop(outcome.attempt, None)
        if span is None:
            return
        ended_at = time.monotonic()
        if status:
            span.attributes["http.response.status_code"] = status
        if outcome.first_token_at is not None:
            span.add_event("first_token", ended_at - (now - outcome.first_token_at))
        if failure := outcome.failure or (str(status) if status >= ERROR_STATUS else ""):
            span.attributes["chairlift.attempt.outcome"] = "failed"
            span.fail(failure)
        else:
            is_complete = outcome.outcome is HealthOutcome.SUCCESS
            span.attributes["chairlift.attempt.outcome"] = "complete" if is_complete else "cancelled"
        span.end(ended_at)
