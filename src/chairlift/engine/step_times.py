"""StepTimes: what a step costs, learnt from the steps so far.

    milliseconds = c0 + c1 * rows + c2 * prompt tokens + c3 * tokens the rows see + c4 * tokens the prompt tokens see

Recursive least squares with forgetting (Haykin, Adaptive Filter Theory, chapter 10): each step moves the five numbers a
little, old steps fade, so the model follows the machine. It reads no clock; durations are given to it.
"""

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from chairlift.engine.plan import StepPlan

FORGETTING = 0.995
"""Weight of a step for every newer one: about the last 200 count."""

UNSURE = 1e4
"""How little is known of each number at first, and the most that may be forgotten of it again."""

SCALE = np.array([1.0, 16.0, 256.0, 16_384.0, 262_144.0])
"""Typical sizes of the five terms, so that none of them outweighs the others."""

OUTLIER = 3.0
"""A step that took so many times longer than expected counts as if it had taken just that."""

FIRST_DEVIATION = 0.15
"""Relative error that is assumed until it has been seen."""

FAMILIAR = 20
"""Steps after which an expectation is worth something."""

Terms = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a step its duration depends on.

    Attributes:
        rows: sequences that got one token and were drawn from.
        prompt_tokens: tokens of all other rows.
        tokens_read: tokens that those `rows` see, summed.
        pairs: for each prompt token the tokens it sees, summed.
    """

    rows: int
    prompt_tokens: int
    tokens_read: int
    pairs: float

    @classmethod
    def of(cls, plan: StepPlan, num_decodes: int) -> "StepShape":
        """Measure a plan whose first num_decodes rows generate."""
        starts, counts = plan.start_positions, plan.num_new_tokens[num_decodes:].astype(np.float64)
        return cls(
            rows=num_decodes,
            prompt_tokens=int(counts.sum()),
            tokens_read=int(starts[:num_decodes].sum()) + num_decodes,
            pairs=float((counts * (starts[num_decodes:] + (counts + 1) / 2)).sum()),
        )

    @property
    def terms(self) -> Terms:
        """float64 [5]: what the five numbers are multiplied by."""
        terms: Terms = np.array([1.0, self.rows, self.prompt_tokens, self.tokens_read, self.pairs]) / SCALE
        return terms


class StepTimes:
    """The five numbers, and how far off they were lately.

    Attributes:
        steps: steps learnt from.
        most_prompt_tokens: the most that one of them had.
        deviation: typical relative error of an expectation.
    """

    def __init__(self) -> None:
        self._numbers = np.zeros(len(SCALE))
        self._doubt = np.eye(len(SCALE)) * UNSURE
        self.steps = 0
        self.most_prompt_tokens = 0
        self.deviation = FIRST_DEVIATION

    def learn(self, shape: StepShape, milliseconds: float) -> None:
        """Take in a step that took so long."""
        terms = shape.terms
        expected = float(self._numbers @ terms)
        if self.steps >= FAMILIAR and expected > 0:
            milliseconds = min(milliseconds, OUTLIER * expected)
            self.deviation += 0.02 * (abs(milliseconds - expected) / expected - self.deviation)
        gain = self._doubt @ terms
        gain /= FORGETTING + float(terms @ gain)
        self._numbers += gain * (milliseconds - expected)
        self._doubt -= np.outer(gain, terms @ self._doubt)
        if self._doubt.trace() < UNSURE:
            self._doubt /= FORGETTING
        self.steps += 1
        self.most_prompt_tokens = max(self.most_prompt_tokens, shape.prompt_tokens)

    def expected_ms(self, shape: StepShape) -> float:
        """Milliseconds that such a step should take."""
        return float(np.maximum(self._numbers, 0.0) @ shape.terms)

    def prompt_tokens_in(self, milliseconds: float, tokens_seen: int) -> float:
        """How many prompt tokens behind tokens_seen others can be read in so much time; infinite if they cost nothing.

        n of them cost n * (alone + pair * tokens_seen) + pair * n * (n + 1) / 2: each one sees those before it.
        """
        _, _, alone, _, pair = np.maximum(self._numbers, 0.0) / SCALE
        slope = alone + pair * (tokens_seen + 0.5)
        if milliseconds <= 0 or slope <= 0:
            return 0.0 if milliseconds <= 0 else inf
        # The root of that, written so that a pair may cost nothing.
        return float(2 * milliseconds / (slope + sqrt(slope * slope + 2 * pair * milliseconds)))

    def least_ms(self, prompt_tokens: int, chunk: int, more_tokens: int) -> float:
        """Milliseconds that a request alone needs at least: its prompt in chunks, then more_tokens steps.

        0 while too little is known.
        """
        if self.steps < FAMILIAR or not self.most_prompt_tokens:
            return 0.0
        step, row, token, _, _ = np.maximum(self._numbers, 0.0) / SCALE
        reading = step * -(-prompt_tokens // chunk) + token * prompt_tokens
        return float(reading + more_tokens * (step + row))
