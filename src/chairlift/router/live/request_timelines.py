"""RequestTimelines: why the last requests waited, and where they were answered; without their content.

received ── wait: held ──> pick ── attempt 1: replica A ──X         ── first byte ──────────> outcome
                             └──── attempt 2: replica B (resume, retry, hedge, handover) ──┘
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from chairlift.core.clock import Clock
from chairlift.core.errors import ChairliftError
from chairlift.router.attempts.actions import PickReplica, RecordOutcome
from chairlift.web.service.event_ring_buffer import EventRingBuffer

MAX_REQUESTS = 200
"""Ended requests that are kept."""

MAX_SPANS = 32
"""Attempts and waits of one request that are kept, each."""

MAX_NAME_CHARS = 128

HELD, NO_REPLICA = "held", "no_replica"
"""Why a request waits: no replica is ready and one is started; no replica can take an attempt now."""


@dataclass(slots=True)
class AttemptSpan:
    """One attempt on one replica; times are on the router's clock.

    Attributes:
        number: number of the attempt.
        replica_id: the replica's URL.
        purpose: first, retry, resume, hedge, handover.
        cached_tokens: prompt tokens that the router expects in the replica's prefix cache.
        began_at: time of the pick.
        ended_at: time of the end; None while it is open.
        outcome: success, fault or neutral; "" while it is open.
        reason: why it failed; "" for none.
        first_token_seconds: from sending it to its first token; None without one.
    """

    number: int
    replica_id: str
    purpose: str
    cached_tokens: int
    began_at: float
    ended_at: float | None = None
    outcome: str = ""
    reason: str = ""
    first_token_seconds: float | None = None


class RequestTimeline:
    """One request, from its body to the end of its response. Use it as a context manager.

    Attributes:
        request_id: the request's id.
        outcome: "complete", "abort" or an error code; "" while it is open.
        prompt_tokens: estimated tokens of the prompt.
        attempts: its attempts, the first MAX_SPANS of them.
    """

    def __init__(self, owner: "RequestTimelines", request_id: str, tenant: str, model: str, now: float) -> None:
        self.request_id, self.outcome, self.prompt_tokens = request_id, "", 0
        self.attempts: list[AttemptSpan] = []
        self._owner, self._tenant, self._model = owner, tenant, model
        self._arrived_at = now
        self._ended_at: float | None = None
        self._first_byte_at: float | None = None
        self._wall_seconds = time.time()
        self._waits: list[tuple[str, float, float]] = []
        self._waits_since: tuple[str, float] | None = None

    def __enter__(self) -> "RequestTimeline":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.outcome:
            self.outcome = error.code if isinstance(error, ChairliftError) else "complete" if kind is None else "abort"
        self._owner.end(self)

    # -- events ----------------------------------------------------------------------------------------------------

    def begin_wait(self, reason: str, now: float) -> None:
        """Note that the request waits; a wait in progress goes on."""
        if self._waits_since is None:
            self._waits_since = reason, now

    def end_wait(self, now: float) -> None:
        """Note that it does not wait any more."""
        if self._waits_since is not None:
            if len(self._waits) < MAX_SPANS:
                self._waits.append((*self._waits_since, now))
            self._waits_since = None

    def record_pick(self, action: PickReplica, replica_id: str | None, cached_tokens: int, now: float) -> None:
        """Note which replica an attempt has, or that there is none."""
        if replica_id is None:
            self.begin_wait(NO_REPLICA, now)
            return
        self.end_wait(now)
        if len(self.attempts) < MAX_SPANS:
            self.attempts.append(AttemptSpan(action.attempt, replica_id, action.purpose, cached_tokens, now))

    def record_attempt(self, outcome: RecordOutcome, now: float) -> None:
        """Note how an attempt has ended."""
        for span in self.attempts:
            if span.number == outcome.attempt:
                span.ended_at, span.outcome, span.reason = now, outcome.outcome, outcome.failure
                span.first_token_seconds = outcome.first_token_seconds

    def record_first_byte(self, now: float) -> None:
        """Note that the response has begun."""
        self._first_byte_at = now

    def end(self, now: float) -> None:
        """Note the end of the request."""
        self.end_wait(now)
        self._ended_at = now

    # -- view ------------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Return the timeline as JSON has it: times in seconds since the request arrived."""
        waits = [*self._waits, *([] if self._waits_since is None else [(*self._waits_since, None)])]
        return {
            "request_id": self.request_id, "tenant": self._tenant, "model": self._model,
            "at_seconds": round(self._wall_seconds, 3), "prompt_tokens": self.prompt_tokens, "outcome": self.outcome,
            "seconds": self._since_arrival(self._ended_at),
            "first_byte_seconds": self._since_arrival(self._first_byte_at),
            "waits": [
                [reason, self._since_arrival(began), self._since_arrival(ended)] for reason, began, ended in waits
            ],
            "attempts": [
                {
                    "number": span.number, "replica_id": span.replica_id, "purpose": span.purpose,
                    "cached_tokens": span.cached_tokens, "began_seconds": self._since_arrival(span.began_at),
                    "ended_seconds": self._since_arrival(span.ended_at), "outcome": span.outcome,
                    "reason": span.reason, "first_token_seconds": span.first_token_seconds,
                }
                for span in self.attempts
            ],
        }  # fmt: skip

    def _since_arrival(self, at: float | None) -> float | None:
        return None if at is None else round(at - self._arrived_at, 4)


class RequestTimelines:
    """The timelines of one router. Belongs to one event loop.

    Attributes:
        log: those of the last requests that have ended.
    """

    def __init__(self, clock: Clock) -> None:
        self.log = EventRingBuffer(MAX_REQUESTS)
        self._clock = clock
        self._open: dict[int, RequestTimeline] = {}

    def begin(self, request_id: str, tenant: str, model: object) -> RequestTimeline:
        """Return the timeline of a request that has arrived."""
        name = model[:MAX_NAME_CHARS] if isinstance(model, str) else ""
        timeline = RequestTimeline(self, request_id, tenant, name, self._clock.now())
        self._open[id(timeline)] = timeline
        return timeline

    def end(self, timeline: RequestTimeline) -> None:
        """Move the timeline of a request that has ended to the log."""
        del self._open[id(timeline)]
        timeline.end(self._clock.now())
        self.log.add(timeline)

    @property
    def open(self) -> Iterable[RequestTimeline]:
        """Timelines of open requests, oldest first."""
        return self._open.values()
