"""How a step is shared between those who generate and those who still read their prompt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.timeline import WaitReason

DEFAULT_SAFETY_MARGIN = 0.2

MAX_PREFILL_STREAK = 8
"""Steps in a row in which `prefill_first` may leave out somebody who generates."""

DECODE_FIRST_SHARE = 8
"""Under `decode_first` prompts take at most one part in so many of a step in which somebody generates."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a batching policy looks at before a step.

    Attributes:
        running: riding sequences, those with their last token in flight included.
        generating: those of them that want one token.
        reading: those of them that want more of their prompt.
        free_share: share of the blocks that nobody holds.
        seats_left: how many more can board.
        boarded: how many boarded in the step before.
        stopped_by: what ended the boarding of the step before; None when the line did.
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
    """What a batching policy grants a step.

    Attributes:
        prefill_tokens: prompt tokens at most.
        boarding: whether the line may board.
        prompts_first: prompts are served, and the line boards, before those who generate; else after them.
        generating: whether those who generate ride; if nobody else can, they do all the same.
    """

    prefill_tokens: int
    may_schedule_waiting: bool = True
    prompts_first: bool = False
    generating: bool = True


class BatchingPolicy(Protocol):
    """Shares out a step; asked once before each.

    Attributes:
        is_even: whether prompts get as much of a step once somebody generates as before.
    """

    keeps_prefill_share: bool

    def decide(self, seen: StepContext) -> StepAllowance:
        """Say who gets what."""
        ...


class MixedBatching:
    """Prompt chunks ride in whatever budget the generating sequences leave."""

    keeps_prefill_share = True

    def decide(self, seen: StepContext) -> StepAllowance:
        """Everybody."""
        return StepAllowance(seen.prefill_budget)


class FifoBatching:
    """Below a share of free blocks only those that generate ride, as in transformers' FIFO scheduler."""

    keeps_prefill_share = False

    def __init__(self, safety_margin: float) -> None:
        self._margin = safety_margin

    def decide(self, seen: StepContext) -> StepAllowance:
        """Below the margin nobody boards; prompts go on only when nobody generates: then somebody has to begin."""
        if seen.free_share >= self._margin or not seen.num_decoding + seen.num_prefilling:
            return StepAllowance(seen.prefill_budget)
        return StepAllowance(0 if seen.num_decoding else seen.prefill_budget, may_schedule_waiting=False)


class PrefillFirstBatching:
    """Prompts take the step before those who generate, who are never left out MAX_PREFILL_STREAK times in a row."""

    keeps_prefill_share = True

    def __init__(self) -> None:
        self._streak = 0

    def decide(self, seen: StepContext) -> StepAllowance:
        """Prompts first, but for one step in MAX_PREFILL_STREAK + 1."""
        self._streak = self._streak + 1 if seen.num_decoding else 0
        if self._streak > MAX_PREFILL_STREAK:
            self._streak = 0
            return StepAllowance(seen.prefill_budget)
        return StepAllowance(seen.prefill_budget, prompts_first=True)


class DecodeFirstBatching:
    """While anybody generates, prompts get a small share of each step, so that tokens come evenly."""

    keeps_prefill_share = False

    def decide(self, seen: StepContext) -> StepAllowance:
        """A DECODE_FIRST_SHARE-th of the prompt budget, or all of it when nobody generates."""
        if not seen.num_decoding:
            return StepAllowance(seen.prefill_budget)
        return StepAllowance(max(1, seen.prefill_budget // DECODE_FIRST_SHARE))


class StaticBatching:
    """The yardstick: a batch boards together, reads its prompts, generates, and only then the next one boards.

    Rows that have finished leave the computation; their seats stay empty until the last one ends, those that end while
    the batch is being filled included. Filling ends when the line does, when blocks run out or when as many have
    boarded as there are seats; a step's budget only interrupts it, and is then spent on prompts of the batch.
    """

    keeps_prefill_share = True

    def __init__(self) -> None:
        self._filling = False
        self._boarded = 0

    def decide(self, seen: StepContext) -> StepAllowance:
        """Board while the batch is filled, read while anybody reads, then generate."""
        self._boarded += seen.num_newly_scheduled
        if not seen.running:
            self._filling, self._boarded = True, 0
        elif seen.waiting_stopped_by is not WaitReason.BUDGET or self._boarded >= seen.running + seen.num_free_slots:
            self._filling = False
        reading = self._filling or seen.num_prefilling > 0
        return StepAllowance(
            seen.prefill_budget, may_schedule_waiting=self._filling, prompts_first=True, generating=not reading
        )


BATCHING_POLICIES: dict[str, Callable[[], BatchingPolicy]] = {
    "mixed": MixedBatching, "prefill_first": PrefillFirstBatching, "decode_first": DecodeFirstBatching,
    "static": StaticBatching,
}  # fmt: skip
"""Those without a setting of their own; "fifo" has its safety margin."""

NAMES = tuple(sorted([*BATCHING_POLICIES, "fifo"]))


def make_batching_policy(config: SchedulerConfig) -> BatchingPolicy:
    """Make the batching policy that config.batching names.

    Raises ConfigError when there is none, or when a safety margin is given to one that has no use for it.
    """
    name, margin = config.batching, config.safety_margin
    if name == "fifo":
        margin = DEFAULT_SAFETY_MARGIN if margin is None else margin
        if not 0 <= margin < 1:
            raise ConfigError(f"safety_margin must be at least 0 and less than 1, got {margin}", option="safety_margin")
        return FifoBatching(margin)
    if name not in BATCHING_POLICIES:
        raise ConfigError(f"unknown batching {name!r}; there is {', '.join(NAMES)}", option="batching")
    if margin is not None:
        raise ConfigError("safety_margin belongs to batching 'fifo'", option="safety_margin")
    return BATCHING_POLICIES[name]()
