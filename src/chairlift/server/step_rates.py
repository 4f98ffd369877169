"""StepRates: how fast recent steps have computed prompts and output tokens."""

import math

from chairlift.core.clock import Clock, SystemClock
from chairlift.engine.step_stats import StepStats

OUTPUT_SECONDS = 10.0
"""Time constant of the output rate: a step counts for 1/e of its tokens after this time."""

PREFILL_SHARE = 0.95
"""Share of the weight of earlier steps that stays at each step with prompt tokens: about 20 steps count."""


class StepRates:
    """How fast recent steps have computed prompts and output tokens. One thread records, others may read."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._started_at = self._at = self._clock.now()
        self._outputs = 0.0
        self._prefill_tokens = self._prefill_seconds = 0.0

    def record(self, stats: StepStats) -> None:
        """Record a committed step."""
        now = self._clock.now()
        self._outputs = self._outputs * math.exp((self._at - now) / OUTPUT_SECONDS) + stats.num_outputs
        self._at = now
        if stats.num_prefill_tokens:
            seconds = (stats.schedule_ms + stats.launch_ms + stats.collect_ms + stats.commit_ms) / 1000
            self._prefill_tokens = self._prefill_tokens * PREFILL_SHARE + stats.num_prefill_tokens
            self._prefill_seconds = self._prefill_seconds * PREFILL_SHARE + seconds

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens a second of the recent steps that computed prompts; 0 before the first.

        Output tokens of the same steps take a part of their time, as they do where a prompt arrives next.
        """
        return self._prefill_tokens / self._prefill_seconds if self._prefill_seconds else 0.0

    @property
    def output_tokens_per_second(self) -> float:
        """Output tokens a second over the last OUTPUT_SECONDS, of all requests together."""
        now = self._clock.now()
        window = OUTPUT_SECONDS * -math.expm1((self._started_at - now) / OUTPUT_SECONDS)
        return self._outputs * math.exp((self._at - now) / OUTPUT_SECONDS) / window if window > 0 else 0.0
