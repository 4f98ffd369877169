"""Steering: how many prompt tokens may ride in a step that should not take longer than target_itl_ms."""

from chairlift.engine.scheduler.running_scheduler import RunningSets
from chairlift.engine.scheduler.step_cost_model import StepCostModel, StepFeatures

MIN_PREFILL_TOKENS = 16
"""Prompt tokens that ride in any case, so that whoever is on board gets to the end of its prompt."""

FIRST_GUESS = 64
"""Prompt tokens while nothing has been measured."""

MAX_GROWTH_FACTOR = 2
"""A step may have so many times the prompt tokens of the largest one that was measured."""


MOST_PROMPT_TOKENS = 1 << 30
"""Where prompt tokens seem to cost nothing."""

ERROR_MARGIN = 2.0
"""Typical errors of an expectation by which the aim stays below the target, so that nearly all steps stay within it."""


class ItlController:
    """Solves what steps were seen to cost for the prompt tokens that the target leaves."""

    def __init__(self, target_ms: float, times: StepCostModel) -> None:
        self._target = target_ms
        self._times = times

    def remaining_ms(self, on_board: RunningSets) -> float:
        """Return the milliseconds of the aim that those who generate leave; negative when they take more than it."""
        tokens = sum(each.num_scheduled_tokens for each in on_board.decode_ready)
        tokens += sum(each.num_scheduled_tokens for each in on_board.decode_needs_block)
        rows = on_board.num_decoding
        return self._aim - self._times.expected_ms(StepFeatures(rows, 0, tokens + rows, 0.0))

    def prefill_token_budget(self, left_ms: float) -> int:
        """Return how many may ride at most in so much time; meter() bounds them by what they see, too."""
        times = self._times
        if not times.most_prompt_tokens:
            return FIRST_GUESS
        bound = max(FIRST_GUESS, MAX_GROWTH_FACTOR * times.most_prompt_tokens)
        return int(max(MIN_PREFILL_TOKENS, min(times.prefill_tokens_within(left_ms, 0), bound)))

    def meter(self, left_ms: float) -> "PrefillTimeBudget":
        """Return what measures the prompt tokens of a step with so much time for them."""
        return PrefillTimeBudget(self._times, left_ms)

    def is_saturated(self, left_ms: float) -> bool:
        """Whether those who generate take the target by themselves already, so that nobody else should board.

        A target that even one request alone would miss keeps nobody away.
        """
        return left_ms <= 0 and self._times.expected_ms(StepFeatures(1, 0, 0, 0.0)) < self._aim

    @property
    def _aim(self) -> float:
        return self._target / (1 + ERROR_MARGIN * self._times.deviation)


class PrefillTimeBudget:
    """The milliseconds of one step that are left for prompt tokens, each charged by the tokens that it sees."""

    def __init__(self, times: StepCostModel, milliseconds: float) -> None:
        self._times = times
        self._left = milliseconds
        self._given = 0

    def fits(self, tokens_seen: int) -> int:
        """Return how many more fit behind so many tokens; LEAST_PROMPT_TOKENS of a step always do."""
        affordable = min(self._times.prefill_tokens_within(self._left, tokens_seen), MOST_PROMPT_TOKENS)
        return max(MIN_PREFILL_TOKENS - self._given, int(affordable))

    def take(self, count: int, tokens_seen: int) -> None:
        """Charge so many behind so many tokens."""
        self._left -= self._times.prefill_ms(count, tokens_seen)
        self._given += count
