"""What an engine counts: values for whoever asks; nobody here publishes anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from chairlift.core.request import FinishReason

if TYPE_CHECKING:
    from chairlift.engine.scheduler.step_builder import InFlightStep


@dataclass(slots=True)
class Counters:
    """Totals since the start of the scheduler."""

    steps: int = 0
    scheduled_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    failed_steps: int = 0
    max_in_flight: int = 0
    finished_by_reason: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))

    def record_step(self, flight: InFlightStep, in_flight: int) -> None:
        """Count a step, and how many are on their way with it."""
        self.steps += 1
        self.max_in_flight = max(self.max_in_flight, in_flight)
        self.scheduled_tokens += flight.plan.num_tokens

    def record_first_schedule(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a request's first ride."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def record_finish(self, reason: FinishReason) -> None:
        """Count an end."""
        self.finished_by_reason[reason] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One step in numbers; milliseconds by phase.

    Attributes:
        step_id: the plan's.
        num_sequences: rows of the step.
        num_tokens: tokens of the step, prompt and generated ones.
        num_prefill_tokens: tokens of rows that brought more than one.
        num_outputs: requests that had news.
        context_tokens: tokens that its rows can see, summed over the rows.
        prefill_pairs: pairs (token, token it sees) of rows that brought more than one.
        running: requests on board after the step.
        waiting: requests in line after the step.
        free_blocks: blocks nobody holds after the step.
        held_slots: token slots of the blocks that somebody holds after the step, shared ones counted once.
        unused_slots: those of them that hold no confirmed token yet.
        preemptions: total since the start.
        in_flight: launches on their way when this one's result came, itself included; the last one of all finds 1.
        started_ms: from the engine's start to the moment when this step began to be decided.
        collect_started_ms: from the engine's start to the moment when its result was waited for. With two launches in
            flight another step's phases lie between this one's launch and that.
        schedule_ms: deciding.
        launch_ms: handing the plan to the runner (computing, where the runner computes at once).
        collect_ms: waiting for the runner.
        commit_ms: taking the result in.
    """

    step_id: int
    num_sequences: int
    num_tokens: int
    num_prefill_tokens: int
    num_outputs: int
    context_tokens: int
    prefill_pairs: int
    running: int
    waiting: int
    free_blocks: int
    allocated_kv_tokens: int
    unused_kv_tokens: int
    preemptions: int
    in_flight: int
    schedule_ms: float
    launch_ms: float
    collect_ms: float
    commit_ms: float
    started_ms: float = 0.0
    collect_started_ms: float = 0.0

    @property
    def ended_ms(self) -> float:
        """From the engine's start to the moment when the result was taken in."""
        return self.collect_started_ms + self.collect_ms + self.commit_ms


class SchedulerState(TypedDict):
    """Who waits, in order, and why; for people and admin pages."""

    waiting_requests: int
    active_requests: int
    waiting_order: list[str]
    wait_reasons: dict[str, str]
    states: dict[str, str]
    in_flight: int
    max_in_flight: int
    steps: int
    preemptions: int
    failed_steps: int
    finished_by_reason: dict[str, int]


class CacheState(TypedDict):
    """The pool in numbers; free + cached + allocated == total."""

    total_blocks: int
    free_blocks: int
    cached_blocks: int
    allocated_blocks: int
    block_size: int
    memory_utilization: float
    window_blocks_freed: int
