"""StepCostModel: predicts the duration of a step, learnt from the steps so far.

    milliseconds = c0 + c1 * rows + c2 * prompt tokens + c3 * context of the rows + c4 * context of the prompt tokens

No cost is negative, and a step counts by its relative error: sums of products fade by DECAY a step, and a few
rounds of coordinate descent on the normal equations (Franc, Hlaváč, Navara: "Sequential coordinate-wise algorithm for
the non-negative least squares problem", CAIP 2005) move the five coefficients towards the least relative squares. So a
step that hangs weighs next to nothing, a kind of step that has not run for long keeps its cost, and the model follows
the machine. It reads no clock; the caller passes durations.
"""

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from chairlift.engine.step_plan import StepPlan

DECAY = 0.99
"""Weight of a step for every newer one: about the last 100 count."""

ROUNDS = 3
"""Rounds of coordinate descent after each step, from where the last ones ended."""

SCALE = (1.0, 16.0, 256.0, 16_384.0, 262_144.0)
"""Typical sizes of the five terms, so that none of them outweighs the others."""

OUTLIER_RATIO = 3.0
"""A step counts as at least 1 / this of its expected time; otherwise a very short step would outweigh all."""

FIRST_DEVIATION = 0.15
"""Relative error that is assumed until it has been measured."""

MIN_OBSERVATIONS = 20
"""Steps, and steps with prompt tokens, before predictions are used."""

LOWER_BOUND_FACTOR = 0.7
"""Share of a prediction that counts as a lower bound."""

LEAST_WEIGHT = 1e-200
"""A sum without new terms stops fading here, before it underflows."""

Terms = tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """The features of a step that its duration depends on.

    Attributes:
        rows: sequences with one token that is sampled, and tokens of the sequences with drafts.
        prompt_tokens: tokens of all other rows.
        tokens_read: context tokens of the sequences that have these `rows`, summed.
        pairs: context tokens of each prompt token, summed.
    """

    rows: int
    prompt_tokens: int
    tokens_read: int
    pairs: float

    @classmethod
    def of(cls, plan: StepPlan, num_decodes: int) -> "StepFeatures":
        """Compute the features of a plan whose first num_decodes rows decode."""
        starts = plan.start_positions
        if num_decodes == plan.num_rows:  # the usual step; a list sum is fastest here
            return cls(num_decodes, 0, sum(starts.tolist()) + num_decodes, 0.0)
        counts = plan.num_new_tokens.astype(float)
        decodes = np.arange(plan.num_rows) < num_decodes
        if len(plan.num_drafts):
            decodes[plan.sample_rows[plan.num_drafts > 0]] = True
        prompts = ~decodes
        return cls(
            rows=int(counts[decodes].sum()),
            prompt_tokens=int(counts[prompts].sum()),
            tokens_read=int((starts + counts)[decodes].sum()),
            pairs=float((counts * (starts + (counts + 1) / 2))[prompts].sum()),
        )

    @property
    def terms(self) -> Terms:
        """The factors of the five coefficients."""
        _, row, token, read, pair = SCALE
        return 1.0, self.rows / row, self.prompt_tokens / token, self.tokens_read / read, self.pairs / pair


class StepCostModel:
    """Holds the five coefficients and their recent error.

    Attributes:
        steps: steps learnt from.
        prompt_steps: steps learnt from that had prompt tokens.
        most_prompt_tokens: the most prompt tokens in one of them.
        deviation: typical relative error of a prediction, at most 1.
    """

    def __init__(self) -> None:
        self._numbers = [0.0] * len(SCALE)
        self._products = [[0.0] * len(SCALE) for _ in SCALE]
        self._targets = [0.0] * len(SCALE)
        self.steps = self.prompt_steps = 0
        self.most_prompt_tokens = 0
        self.deviation = FIRST_DEVIATION

    def update(self, features: StepFeatures, milliseconds: float) -> None:
        """Learn from a step and its duration."""
        expected = self.expected_ms(features)
        if expected > 0:
            milliseconds = max(milliseconds, expected / OUTLIER_RATIO)
            error = abs(milliseconds - expected) / max(milliseconds, expected)
            # The errors of the first predictions say nothing about later ones.
            if self.steps >= MIN_OBSERVATIONS:
                self.deviation += 0.02 * (error - self.deviation)
        # Divided by its duration, each step has the target 1: the squares are those of relative errors.
        terms = [term / milliseconds for term in features.terms]
        for index, term in enumerate(terms):
            row = self._products[index]
            fade = DECAY if row[index] > LEAST_WEIGHT else 1.0
            self._targets[index] = self._targets[index] * fade + term
            for other, factor in enumerate(terms):
                row[other] = row[other] * fade + term * factor
        self._descend()
        self.steps += 1
        self.prompt_steps += features.prompt_tokens > 0
        self.most_prompt_tokens = max(self.most_prompt_tokens, features.prompt_tokens)

    def _descend(self) -> None:
        numbers, targets = self._numbers, self._targets
        for _ in range(ROUNDS):
            for index, row in enumerate(self._products):
                diagonal = row[index]
                if diagonal > 0:
                    residual = targets[index] - sum(
                        [factor * number for factor, number in zip(row, numbers, strict=True)]
                    )
                    numbers[index] = max(0.0, numbers[index] + residual / diagonal)

    def expected_ms(self, features: StepFeatures) -> float:
        """Predict the milliseconds of a step."""
        return sum([number * term for number, term in zip(self._numbers, features.terms, strict=True)])

    @property
    def row_ms(self) -> float:
        """Milliseconds that one more row adds to a step of rows with one token.

        At most those of a prompt token: where the number of rows has not changed for long, the model cannot tell their
        cost from that of the step itself.
        """
        row, token = self._numbers[1] / SCALE[1], self._numbers[2] / SCALE[2]
        return min(row, token) if self.prompt_steps else row

    def prefill_ms(self, count: int, context_tokens: int) -> float:
        """Predict the milliseconds that `count` prompt tokens after context_tokens others add to a step."""
        alone, pair = self._numbers[2] / SCALE[2], self._numbers[4] / SCALE[4]
        return count * (alone + pair * (context_tokens + (count + 1) / 2))

    def prefill_tokens_within(self, milliseconds: float, context_tokens: int) -> float:
        """Return how many prompt tokens after context_tokens others fit; infinite if they cost nothing.

        The inverse of prefill_ms.
        """
        alone, pair = self._numbers[2] / SCALE[2], self._numbers[4] / SCALE[4]
        slope = alone + pair * (context_tokens + 0.5)
        if milliseconds <= 0 or slope <= 0:
            return 0.0 if milliseconds <= 0 else inf
        # The root of the quadratic in a form that allows pair == 0.
        return 2 * milliseconds / (slope + sqrt(slope * slope + 2 * pair * milliseconds))

    def lower_bound_ms(self, prompt_tokens: int, chunk: int, more_tokens: int) -> float:
        """Return the least milliseconds of a request alone: its prompt in chunks, then more_tokens steps.

        0 before MIN_OBSERVATIONS steps.
        """
        if self.steps < MIN_OBSERVATIONS or self.prompt_steps < MIN_OBSERVATIONS:
            return 0.0
        step, row, token = (number / size for number, size in zip(self._numbers[:3], SCALE[:3], strict=True))
        prefill = step * -(-prompt_tokens // chunk) + token * prompt_tokens
        return LOWER_BOUND_FACTOR * (prefill + more_tokens * (step + row))
