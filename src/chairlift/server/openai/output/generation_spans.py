"""GenerationSpans: makes the spans of a generation from the times that the engine reports and the server's own.

    request ───────────────────────────────────────────────
      tokenize ──│ queue ──│ prefill ──│ decode ───────────│   until the last byte was sent
                       scheduled   first_token   preempted, scheduled     events of the request

The engine's clock is another one. Its times count from when it queued the request, which is estimated: not before the
request was submitted, and early enough that no output came before the engine's time of it.
"""

import time
from collections.abc import Sequence

from chairlift.core.engine_output import FinishReason, Usage
from chairlift.core.request_timeline import Timeline
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_event import TextEvent
from chairlift.observability.tracing.gen_ai_attributes import gen_ai_attributes
from chairlift.observability.tracing.span import AttributeValue, RequestTrace
from chairlift.observability.tracing.tracer import ERROR_STATUS
from chairlift.server.openai.base_request import BaseRequest
from chairlift.web.error_responses import error_response_of

MAX_PROMPTS = 16
"""Prompts of one request that have spans of their own."""

REPORTED_EVENTS = frozenset({"scheduled", "first_token", "preempted", "waiting_for_prefix", "grammar_compiled"})


class GenerationSpans:
    """Observes the outputs of one sampled request."""

    def __init__(
        self, trace: RequestTrace, path: str, request: BaseRequest, processors: Sequence[OutputProcessor]
    ) -> None:  # fmt: skip
        """Note what the request asks for, right before it is submitted."""
        self._trace, self._processors, self._model = trace, processors, request.model
        self._submitted_at = time.monotonic()
        self._first_at: dict[int, float] = {}
        self._endings: dict[int, tuple[float, Timeline | None]] = {}
        self._reasons: list[str] = []
        trace.server.attributes |= gen_ai_attributes(path, request.model) | _request_attributes(request)
        if num_resumed := sum(len(tokens) for each in processors for tokens in each.request.resume):
            trace.server.add_event("resumed", attributes={"tokens": num_resumed})

    def take(self, batch: Sequence[tuple[int, TextEvent]], now: float) -> None:
        """Note the times of a batch of events, by the number of their prompt."""
        for number, event in batch:
            if event.token_ids:
                self._first_at.setdefault(number, now)
            if event.finish_reason is not None:
                self._reasons.append(str(event.finish_reason))
            if event.usage is not None:
                self._endings[number] = now, event.timeline

    def end(self, usage: Usage, outcome: str, error: BaseException | None) -> None:
        """Add the spans, after the last byte was sent."""
        if error is not None and outcome != FinishReason.ABORT and error_response_of(error).status >= ERROR_STATUS:
            self._trace.server.fail(outcome)
        now, attributes = time.monotonic(), self._trace.server.attributes
        attributes |= {
            "gen_ai.response.model": self._model, "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens, "chairlift.outcome": outcome,
        }  # fmt: skip
        if self._reasons:
            attributes["gen_ai.response.finish_reasons"] = tuple(self._reasons)
        for number, processor in enumerate(self._processors[:MAX_PROMPTS]):
            reported_at, timeline = self._endings.get(number, (now, processor.timeline))
            if timeline is None or not timeline.events:
                self._add_observed_spans(number, now)
            else:
                self._add_reported_spans(number, timeline, reported_at, now)

    def _add_observed_spans(self, number: int, now: float) -> None:
        """Add the spans of a request of which the engine has reported no times: it stopped, or the client left."""
        first_at, index = self._first_at.get(number), self._index(number)
        self._trace.add("queue and prefill", self._submitted_at, now if first_at is None else first_at, index)
        if first_at is not None:
            self._trace.server.add_event("first_token", first_at)
            self._trace.add("decode", first_at, now, index)

    def _add_reported_spans(self, number: int, timeline: Timeline, reported_at: float, now: float) -> None:
        at, index = {event.name: event.at for event in reversed(timeline.events)}, self._index(number)
        length = timeline.events[-1].at
        queued_at = self._queued_at(number, reported_at - length, at.get("first_token"))
        waits: dict[str, AttributeValue] = {
            f"chairlift.wait.{reason}_seconds": seconds for reason, seconds in timeline.wait_seconds
        }
        scheduled, first = at.get("scheduled", length), at.get("first_token", length)
        self._trace.add("queue", queued_at, queued_at + scheduled, waits | index)
        if "scheduled" in at:
            self._trace.add("prefill", queued_at + scheduled, queued_at + first, index)
        if "first_token" in at:
            self._trace.add("decode", queued_at + first, now, index)
        for event in timeline.events:
            if event.name in REPORTED_EVENTS:
                self._trace.server.add_event(event.name, queued_at + event.at, index)

    def _queued_at(self, number: int, latest: float, first_token: float | None) -> float:
        """Return when the engine queued a prompt, by this process's clock, which is no later than `latest`."""
        if first_token is not None and number in self._first_at:
            latest = min(latest, self._first_at[number] - first_token)
        return max(self._submitted_at, latest)

    def _index(self, number: int) -> dict[str, AttributeValue]:
        return {"chairlift.prompt.index": number} if len(self._processors) > 1 else {}


def _request_attributes(request: BaseRequest) -> dict[str, AttributeValue]:
    """Return the parameters that hold for the request, set by the client or by default."""
    params = request.params
    values: dict[str, AttributeValue | None] = {
        "max_tokens": params.max_tokens, "temperature": params.temperature, "top_p": params.top_p,
        "top_k": params.top_k, "seed": params.seed, "presence_penalty": params.presence_penalty or None,
        "frequency_penalty": params.frequency_penalty or None,
        "choice.count": params.n if params.n != 1 else None, "stream": request.stream or None,
    }  # fmt: skip
    return {f"gen_ai.request.{name}": value for name, value in values.items() if value is not None}
