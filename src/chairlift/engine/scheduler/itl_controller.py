"""ItlController: bounds the prompt tokens of a step that should not take longer than target_itl_ms."""

from chairlift.engine.scheduler.running_scheduler import RunningSets
from chairlift.engine.scheduler.step_cost_model import StepCostModel, StepFeatures

MIN_PREFILL_TOKENS = 16
"""Prompt tokens that every step may have, so that each running sequence completes its prompt."""

FIRST_GUESS = 64
"""Prompt tokens of a step while no step has been measured."""

MAX_GROWTH_FACTOR = 2
"""A step may have this many times the prompt tokens of the largest measured step."""

MOST_PROMPT_TOKENS = 1 << 30
"""Bound on prompt tokens while their measured cost is zero."""

ERROR_MARGIN = 2.0
"""Typical prediction errors between aim and target, so that nearly all steps stay within the target."""


class ItlController:
    """Computes from measured step costs how many prompt tokens the target leaves."""

    def __init__(self, target_ms: float, times: StepCostModel) -> None:
        self._target = target_ms
        self._times = times

    def remaining_ms(self, running_sets: RunningSets) -> float:
        """Return the milliseconds of the target that decoding sequences leave; negative if they exceed it."""
        tokens = sum(each.num_scheduled_tokens for each in running_sets.decode_ready)
        tokens += sum(each.num_scheduled_tokens for each in running_sets.decode_needs_block)
        rows = running_sets.num_decoding
        return self._aim - self._times.expected_ms(StepFeatures(rows, 0, tokens + rows, 0.0))

    def prefill_token_budget(self, left_ms: float) -> int:
        """Return the most prompt tokens for left_ms; meter() also bounds them by their context."""
        times = self._times
        if not times.most_prompt_tokens:
            return FIRST_GUESS
        # Far beyond what was measured a prediction is a guess, so the budget grows with what was measured.
        bound = max(FIRST_GUESS, MAX_GROWTH_FACTOR * times.most_prompt_tokens)
        return int(max(MIN_PREFILL_TOKENS, min(times.prefill_tokens_within(left_ms, 0), bound)))

    def meter(self, left_ms: float) -> "PrefillTimeBudget":
        """Return the meter of a step that has left_ms for prompt tokens."""
        return PrefillTimeBudget(self._times, left_ms)

    def is_saturated(self, left_ms: float) -> bool:
        """Return whether decoding sequences alone use up the target, so that no sequence should start.

        A target that even one request alone would miss rejects no sequence.
        """
        return left_ms <= 0 and self._times.expected_ms(StepFeatures(1, 0, 0, 0.0)) < self._aim

    @property
    def _aim(self) -> float:
        return self._target / (1 + ERROR_MARGIN * self._times.deviation)


class PrefillTimeBudget:
    """Holds the milliseconds of one step for prompt tokens, each charged by its context length."""

    def __init__(self, times: StepCostModel, milliseconds: float) -> None:
        self._times = times
        self._left = milliseconds
        self._charged = 0

    def fits(self, context_tokens: int) -> int:
        """Return how many more tokens fit after this context, and at least MIN_PREFILL_TOKENS of a step."""
        affordable = min(self._times.prefill_tokens_within(self._left, context_tokens), MOST_PROMPT_TOKENS)
        return max(MIN_PREFILL_TOKENS - self._charged, int(affordable))

    def take(self, count: int, context_tokens: int) -> None:
        """Charge `count` tokens after that context."""
        self._left -= self._times.prefill_ms(count, context_tokens)
        self._charged += count
