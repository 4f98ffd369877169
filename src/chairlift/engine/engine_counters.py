"""Counters: plain values that an engine counts; this module publishes none of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chairlift.core.engine_output import FinishReason

if TYPE_CHECKING:
    from chairlift.engine.scheduler.in_flight_step import InFlightStep


MAX_DRAFT_POSITIONS = 16
"""Positions of drafts that are counted one by one; the last one also has those behind it."""


@dataclass(slots=True)
class Counters:
    """Totals since the start of the scheduler.

    Attributes:
        drafts: rows with drafts whose step was committed.
        draft_tokens: drafts in these rows.
        confirmed_draft_tokens: those among them that were sampled and are part of an output.
        confirmed_by_position: the same by their place among the drafts of their row, the first one first; as many as
            there were, MAX_DRAFT_POSITIONS at most.
    """

    steps: int = 0
    scheduled_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    failed_steps: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    confirmed_draft_tokens: int = 0
    confirmed_by_position: list[int] = field(default_factory=list)
    max_in_flight: int = 0
    finished_by_reason: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))

    def record_step(self, step: InFlightStep, in_flight: int) -> None:
        """Count a step, and the steps in flight with it."""
        self.steps += 1
        self.max_in_flight = max(self.max_in_flight, in_flight)
        self.scheduled_tokens += step.plan.num_tokens

    def record_first_schedule(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count the first start of a request."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def record_drafts(self, num_drafts: int, num_confirmed: int) -> None:
        """Count the drafts of a row, and those that are part of the output."""
        self.drafts += 1
        self.draft_tokens += num_drafts
        self.confirmed_draft_tokens += num_confirmed
        counts = self.confirmed_by_position
        while len(counts) < min(num_confirmed, MAX_DRAFT_POSITIONS):
            counts.append(0)
        for place in range(num_confirmed):
            counts[min(place, MAX_DRAFT_POSITIONS - 1)] += 1

    def record_finish(self, reason: FinishReason) -> None:
        """Count a finished request."""
        self.finished_by_reason[reason] += 1
