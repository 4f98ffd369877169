"""BatchingPolicy: divides a step between sequences that decode and sequences that prefill."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.queue_wait_by_reason import WaitReason

DEFAULT_SAFETY_MARGIN = 0.2

MAX_PREFILL_STREAK = 8
"""Steps in a row in which `prefill_first` may leave out a decoding sequence."""

DECODE_FIRST_SHARE = 8
"""Under `decode_first` prompts get at most 1 / this of the prefill budget of a step with a decoding sequence."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """Describes the scheduler to a batching policy before a step.

    Attributes:
        running: running sequences, those with their last token in flight included.
        num_decoding: running sequences that need one token.
        num_prefilling: running sequences that need more prompt tokens.
        free_share: share of the blocks that no sequence holds.
        num_free_slots: how many more sequences can start running.
        num_newly_scheduled: sequences that started in the step before.
        waiting_stopped_by: why the step before started no more sequences; None when the waiting queue was exhausted.
        prefill_budget: prompt tokens of a step, by the configuration.
    """

    running: int
    num_decoding: int
    num_prefilling: int
    free_share: float
    num_free_slots: int
    num_newly_scheduled: int
    waiting_stopped_by: WaitReason | None
    prefill_budget: int


@dataclass(frozen=True, slots=True)
class StepAllowance:
    """Limits a step as a batching policy decides.

    Attributes:
        prefill_tokens: prompt tokens at most.
        may_schedule_waiting: whether waiting sequences may start.
        prompts_first: whether prompts, and waiting sequences, get tokens before decoding sequences.
        generating: whether decoding sequences get tokens; they always do when no other sequence can.
    """

    prefill_tokens: int
    may_schedule_waiting: bool = True
    prompts_first: bool = False
    generating: bool = True


class BatchingPolicy(Protocol):
    """Divides a step; called once before each.

    Attributes:
        keeps_prefill_share: whether prompts get the same share of a step with and without decoding sequences.
    """

    keeps_prefill_share: bool

    def decide(self, context: StepContext) -> StepAllowance:
        """Return the limits of the next step."""
        ...


class MixedBatching:
    """Gives prompts the budget that decoding sequences leave."""

    keeps_prefill_share = True

    def decide(self, context: StepContext) -> StepAllowance:
        """Allow every sequence."""
        return StepAllowance(context.prefill_budget)


class FifoBatching:
    """Schedules only decoding sequences while few blocks are free, like transformers' FIFO scheduler."""

    keeps_prefill_share = False

    def __init__(self, safety_margin: float) -> None:
        self._margin = safety_margin

    def decide(self, context: StepContext) -> StepAllowance:
        """Below the margin, start no sequence and continue prompts only if no sequence decodes."""
        # With nothing to compute no block will become free, so waiting would not end.
        if context.free_share >= self._margin or not context.num_decoding + context.num_prefilling:
            return StepAllowance(context.prefill_budget)
        return StepAllowance(0 if context.num_decoding else context.prefill_budget, may_schedule_waiting=False)


class PrefillFirstBatching:
    """Serves prompts before decoding sequences, but for one step in MAX_PREFILL_STREAK + 1."""

    keeps_prefill_share = True

    def __init__(self) -> None:
        self._streak = 0

    def decide(self, context: StepContext) -> StepAllowance:
        """Put prompts first at most MAX_PREFILL_STREAK times in a row."""
        # Only steps that may leave out a decoding sequence count.
        self._streak = self._streak + 1 if context.num_decoding else 0
        if self._streak > MAX_PREFILL_STREAK:
            self._streak = 0
            return StepAllowance(context.prefill_budget)
        return StepAllowance(context.prefill_budget, prompts_first=True)


class DecodeFirstBatching:
    """Gives prompts a small share of each step while a sequence decodes, so that tokens come evenly."""

    keeps_prefill_share = False

    def decide(self, context: StepContext) -> StepAllowance:
        """Grant 1 / DECODE_FIRST_SHARE of the prefill budget, or all of it when no sequence decodes."""
        if not context.num_decoding:
            return StepAllowance(context.prefill_budget)
        return StepAllowance(max(1, context.prefill_budget // DECODE_FIRST_SHARE))


class StaticBatching:
    """Fills, prefills and decodes a whole batch before the next one starts; the baseline.

    A finished sequence leaves the computation; its slot stays empty until the whole batch has finished, also when it
    finishes while the batch is being filled. Filling ends when the waiting queue is empty, when blocks run out or when
    as many sequences have started as slots exist. A step's budget only interrupts filling; the budget then goes to
    prompts of the batch.
    """

    keeps_prefill_share = True

    def __init__(self) -> None:
        self._filling = False
        self._num_started = 0

    def decide(self, context: StepContext) -> StepAllowance:
        """Start sequences while the batch is filled, prefill them all, then decode."""
        self._num_started += context.num_newly_scheduled
        if not context.running:
            self._filling, self._num_started = True, 0
        elif (
            context.waiting_stopped_by is not WaitReason.BUDGET
            or self._num_started >= context.running + context.num_free_slots
        ):
            self._filling = False
        prefilling = self._filling or context.num_prefilling > 0
        return StepAllowance(
            context.prefill_budget, may_schedule_waiting=self._filling, prompts_first=True, generating=not prefilling
        )


BATCHING_POLICIES: dict[str, Callable[[], BatchingPolicy]] = {
    "mixed": MixedBatching, "prefill_first": PrefillFirstBatching, "decode_first": DecodeFirstBatching,
    "static": StaticBatching,
}  # fmt: skip
"""Policies without a setting of their own; "fifo" has its safety margin."""

NAMES = tuple(sorted([*BATCHING_POLICIES, "fifo"]))


def make_batching_policy(config: SchedulerConfig) -> BatchingPolicy:
    """Make the batching policy that config.batching_policy names.

    Raises ConfigError for an unknown name, or for a safety margin with a policy other than "fifo".
    """
    name, margin = config.batching_policy, config.safety_margin
    if name == "fifo":
        margin = DEFAULT_SAFETY_MARGIN if margin is None else margin
        if not 0 <= margin < 1:
            raise ConfigError(f"safety_margin must be at least 0 and less than 1, got {margin}", option="safety_margin")
        return FifoBatching(margin)
    if name not in BATCHING_POLICIES:
        raise ConfigError(
            f"unknown batching_policy {name!r}; available are {', '.join(NAMES)}", option="batching_policy"
        )
    if margin is not None:
        raise ConfigError("safety_margin needs batching_policy 'fifo'", option="safety_margin")
    return BATCHING_POLICIES[name]()
