"""GenerationTracker: a running request's tokens, usage and timeline, for telemetry and admission."""

import re
import time
from asyncio import CancelledError
from collections.abc import Sequence
from dataclasses import replace

from chairlift.core.engine_output import FinishReason, Usage
from chairlift.core.errors import ChairliftError, EngineDead, Unavailable, error_from_wire
from chairlift.core.load_report import ReplicaState
from chairlift.core.request_timeline import Timeline
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_event import TextEvent
from chairlift.observability.metrics import current_exemplar
from chairlift.server.openai.base_request import BaseRequest
from chairlift.server.openai.output.generation_spans import GenerationSpans
from chairlift.server.openai.response_renderers import total
from chairlift.server.telemetry import Telemetry, TokenLatency
from chairlift.web.admission import Permit
from chairlift.web.body import ClientGone
from chairlift.web.error_responses import error_response_of
from chairlift.web.stream_keep_alive import GENERATING, WAITING

Batch = list[tuple[int, TextEvent]]
TOOLS = "tools"
POSITION = re.compile(r"(?<=: )at \d+\(\d+\): ")
"""Line and column of an error in the grammar of the calls, which the client did not write."""

REJECTION_STATUSES = frozenset({400, 429})
"""HTTP statuses of errors with which the engine rejects a request before any work."""


class GenerationTracker:
    """Tracks a running request's tokens, usage and timeline for telemetry and admission.

    Attributes:
        first_token_at: time of the first token, on the clock of time.monotonic(); None before it.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        permit: Permit,
        started_at: float,
        processors: Sequence[OutputProcessor],
        request: BaseRequest,
        *,
        is_incremental: bool,
        spans: GenerationSpans | None = None,
        tenant: str = "",
        is_from_router: bool = False,
        is_resumable: bool = False,
    ) -> None:
        """Start before the first output.

        `is_incremental` is whether the client reads outputs as they come; `spans` makes those of a sampled request.
        `is_from_router` is whether a router can send the request elsewhere before its first output, and `is_resumable`
        whether behind it, too.
        """
        self._structured_field, self._is_incremental = request.structured_field, is_incremental
        self._telemetry, self._tenant, self._is_streamed = telemetry, tenant, request.stream
        self._is_from_router, self._is_resumable = is_from_router, is_resumable
        self._spans, self._exemplar = spans, current_exemplar()
        self._permit = permit
        self.first_token_at: float | None = None
        self._generates = not any(processor.request.pooling for processor in processors)
        self._started_at = started_at
        self._prompts = [len(processor.request.prompt_token_ids) for processor in processors]
        self._num_resumed = sum(len(tokens) for processor in processors for tokens in processor.request.resume)
        self._last: dict[tuple[int, int], float] = {}
        self._usages: list[Usage] = []
        self._output_tokens = 0
        self._timeline: Timeline | None = None
        self._reason = ""
        self._gap_seconds, self._num_gap_tokens = 0.0, 0

    def take(self, batch: Batch) -> tuple[Batch, ChairliftError | None]:
        """Record a batch of events; return the events to deliver and the error that ends the request."""
        now = time.monotonic()
        if self._spans is not None:
            self._spans.take(batch, now)
        for position, (number, event) in enumerate(batch):
            self._timeline = event.timeline or self._timeline
            if event.finish_reason is FinishReason.ABORT:  # its tokens and text are not delivered: it may be resumed
                return batch[:position], _aborted_by_drain()
            self._note_tokens(number, event, now)
            if event.error is not None:  # many requests may share this error object
                error = with_client_field(
                    error_from_wire(event.error.code, event.error.message, event.error.details), self._structured_field
                )
                return [*batch[:position], (number, replace(event, finish_reason=None, error=None))], error
            if event.finish_reason is not None:  # also of a request without tokens, such as one for an embedding
                self._permit.mark_running()
            if event.usage is not None:
                self._usages.append(event.usage)
                if len(self._usages) == len(self._prompts):
                    self._permit.mark_finished()
            self._reason = self._reason or event.finish_reason or ""
        return batch, None

    def comment(self) -> bytes:
        """Return what a comment says in a stream that is silent."""
        if self.first_token_at is not None:
            return GENERATING
        num_ahead = self._permit.num_ahead
        return b"%s, %d ahead" % (WAITING, num_ahead) if num_ahead else WAITING

    def _note_tokens(self, number: int, event: TextEvent, now: float) -> None:
        if not event.token_ids:
            return
        self._permit.mark_running()
        if not self._last:
            self.first_token_at = now
            self._telemetry.record_first_token(now - self._started_at, self._tenant)
        last = self._last.get((number, event.index))
        gap = now - last if last is not None and self._is_incremental else None  # a whole response has no gaps
        self._telemetry.record_tokens(len(event.token_ids), gap, self._exemplar)
        if gap is not None:
            self._gap_seconds += gap
            self._num_gap_tokens += len(event.token_ids)
        self._last[number, event.index] = now
        self._output_tokens += len(event.token_ids)

    @property
    def usage(self) -> Usage:
        """Tokens used: as the engine reported, or as counted so far."""
        usage_so_far = total(self._usages)
        if len(self._usages) == len(self._prompts):
            return usage_so_far
        return Usage(sum(self._prompts), self._output_tokens, usage_so_far.cached_tokens)

    @property
    def _was_scheduled(self) -> bool:
        """Whether the engine has started to run the request."""
        moments = () if self._timeline is None else self._timeline.events
        return bool(self._last) or any(moment.name == "scheduled" for moment in moments)

    def end(self, request_id: str, error: BaseException | None) -> None:
        """Record the request's end, with or without an error, and end its permit."""
        usage = self.usage
        used = usage.prompt_tokens + usage.completion_tokens - self._num_resumed if self._was_scheduled else 0
        self._permit.end(used, makes_room=not isinstance(error, EngineDead))
        outcome = self._outcome(error)
        if self._spans is not None:
            self._spans.end(usage, outcome, error)
        if (
            isinstance(error, ChairliftError)
            and not self._was_scheduled
            and error_response_of(error).status in REJECTION_STATUSES
        ):
            self._telemetry.record_rejected_by_engine(error.code, self._tenant)
            return
        if outcome == FinishReason.ABORT or isinstance(error, Unavailable):
            self._telemetry.record_abort("client" if isinstance(error, ClientGone) else "server")
        has_gaps = self._is_streamed and self._num_gap_tokens > 0  # a router counts those of streams only, too
        latency = TokenLatency(
            tenant=self._tenant, has_first_token=bool(self._last), generates=self._generates,
            mean_inter_token_seconds=self._gap_seconds / self._num_gap_tokens if has_gaps else None,
        )  # fmt: skip
        seconds = time.monotonic() - self._started_at
        self._telemetry.record_finished(request_id, outcome, seconds, usage, self._timeline, latency, used)

    def _outcome(self, error: BaseException | None) -> str:
        """Return the outcome for metrics and traces: a finish reason or the code of an error."""
        goes_on = self._is_resumable or (self._is_from_router and not self._last)
        if isinstance(error, ClientGone | CancelledError) or (isinstance(error, Unavailable) and goes_on):
            return "abort"
        if error is not None:
            return error.code if isinstance(error, ChairliftError) else "internal_error"
        return self._reason or "abort"


def _aborted_by_drain() -> Unavailable:
    """Return the error of a request that the server aborts because it stops."""
    return Unavailable(
        "the server is leaving and has aborted the request; send it to another server",
        state=str(ReplicaState.DRAINING), retry_after=1.0,
    )  # fmt: skip


def with_client_field(error: ChairliftError, structured_field: str) -> ChairliftError:
    """Return an error of the request's grammar under the field in which the client sent it."""
    if not structured_field or error.details.get("param") != "structured":
        return error
    message = re.sub(r"^structured(\.\w+)?", structured_field, error.message)
    if structured_field == TOOLS:
        message = POSITION.sub("", message)
    return error_from_wire(error.code, message, {**error.details, "param": structured_field})
