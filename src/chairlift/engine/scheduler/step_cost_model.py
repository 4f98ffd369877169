"""StepTimes: what a step costs, learnt from the steps so far.

    milliseconds = c0 + c1 * rows + c2 * prompt tokens + c3 * tokens the rows see + c4 * tokens the prompt tokens see

No cost is negative, and a step counts by its relative error: sums of products fade by FORGETTING a step, and a few
rounds of coordinate descent on the normal equations (Franc, Hlaváč, Navara: "Sequential coordinate-wise algorithm for
the non-negative least squares problem", CAIP 2005) move the five numbers towards the least relative squares. So a step
that hangs weighs next to nothing, what was not seen for long keeps its cost, and the model follows the machine. It
reads no clock; durations are given to it.
"""

from dataclasses import dataclass
from math import inf, sqrt

from chairlift.engine.step_plan import StepPlan

DECAY = 0.99
"""Weight of a step for every newer one: about the last 100 count."""

ROUNDS = 3
"""Of coordinate descent after each step, from where the last ones ended."""

SCALE = (1.0, 16.0, 256.0, 16_384.0, 262_144.0)
"""Typical sizes of the five terms, so that none of them outweighs the others."""

OUTLIER_RATIO = 3.0
"""A step that took so many times less than expected counts as if it had taken just that, or it would outweigh all."""

FIRST_DEVIATION = 0.15
"""Relative error that is assumed until it has been seen."""

MIN_OBSERVATIONS = 20
"""Steps, and steps with prompt tokens, after which an expectation is worth something."""

LOWER_BOUND_FACTOR = 0.7
"""Share of an expectation that is taken for a lower bound."""

LEAST_WEIGHT = 1e-200
"""Sums fade for ever where nothing comes; here they stop, before they vanish."""

Terms = tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class StepFeatures:
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
    def of(cls, plan: StepPlan, num_decodes: int) -> "StepFeatures":
        """Measure a plan whose first num_decodes rows generate."""
        starts = plan.start_positions
        if num_decodes == plan.num_rows:  # most steps are so, and there is little code that is as near as a list's
            return cls(num_decodes, 0, sum(starts.tolist()) + num_decodes, 0.0)
        counts = plan.num_new_tokens[num_decodes:].astype(float)
        return cls(
            rows=num_decodes,
            prompt_tokens=int(counts.sum()),
            tokens_read=int(starts[:num_decodes].sum()) + num_decodes,
            pairs=float((counts * (starts[num_decodes:] + (counts + 1) / 2)).sum()),
        )

    @property
    def terms(self) -> Terms:
        """What the five numbers are multiplied by."""
        _, row, token, read, pair = SCALE
        return 1.0, self.rows / row, self.prompt_tokens / token, self.tokens_read / read, self.pairs / pair


class StepCostModel:
    """The five numbers, and how far off they were lately.

    Attributes:
        steps: steps learnt from.
        prompt_steps: those of them with prompt tokens.
        most_prompt_tokens: the most that one of them had.
        deviation: typical relative error of an expectation, at most 1.
    """

    def __init__(self) -> None:
        self._numbers = [0.0] * len(SCALE)
        self._products = [[0.0] * len(SCALE) for _ in SCALE]
        self._targets = [0.0] * len(SCALE)
        self.steps = self.prompt_steps = 0
        self.most_prompt_tokens = 0
        self.deviation = FIRST_DEVIATION

    def update(self, shape: StepFeatures, milliseconds: float) -> None:
        """Take in a step that took so long."""
        expected = self.expected_ms(shape)
        if expected > 0:
            milliseconds = max(milliseconds, expected / OUTLIER_RATIO)
            error = abs(milliseconds - expected) / max(milliseconds, expected)
            if self.steps >= MIN_OBSERVATIONS:
                self.deviation += 0.02 * (error - self.deviation)
        terms = [term / milliseconds for term in shape.terms]
        for place, term in enumerate(terms):
            row = self._products[place]
            fade = DECAY if row[place] > LEAST_WEIGHT else 1.0
            self._targets[place] = self._targets[place] * fade + term
            for other, factor in enumerate(terms):
                row[other] = row[other] * fade + term * factor
        self._descend()
        self.steps += 1
        self.prompt_steps += shape.prompt_tokens > 0
        self.most_prompt_tokens = max(self.most_prompt_tokens, shape.prompt_tokens)

    def _descend(self) -> None:
        numbers, targets = self._numbers, self._targets
        for _ in range(ROUNDS):
            for place, row in enumerate(self._products):
                own = row[place]
                if own > 0:
                    rest = targets[place] - sum([factor * number for factor, number in zip(row, numbers, strict=True)])
                    numbers[place] = max(0.0, numbers[place] + rest / own)

    def expected_ms(self, shape: StepFeatures) -> float:
        """Milliseconds that such a step should take."""
        return sum([number * term for number, term in zip(self._numbers, shape.terms, strict=True)])

    def prefill_ms(self, count: int, tokens_seen: int) -> float:
        """Milliseconds that so many prompt tokens behind tokens_seen others add to a step."""
        alone, pair = self._numbers[2] / SCALE[2], self._numbers[4] / SCALE[4]
        return count * (alone + pair * (tokens_seen + (count + 1) / 2))

    def prefill_tokens_within(self, milliseconds: float, tokens_seen: int) -> float:
        """How many prompt tokens behind tokens_seen others can be read in so much time; infinite if they cost nothing.

        The inverse of prompt_ms.
        """
        alone, pair = self._numbers[2] / SCALE[2], self._numbers[4] / SCALE[4]
        slope = alone + pair * (tokens_seen + 0.5)
        if milliseconds <= 0 or slope <= 0:
            return 0.0 if milliseconds <= 0 else inf
        # The root of the quadratic, written so that a pair may cost nothing.
        return 2 * milliseconds / (slope + sqrt(slope * slope + 2 * pair * milliseconds))

    def lower_bound_ms(self, prompt_tokens: int, chunk: int, more_tokens: int) -> float:
        """Milliseconds that a request alone needs at least: its prompt in chunks, then more_tokens steps.

        0 while too little is known.
        """
        if self.steps < MIN_OBSERVATIONS or self.prompt_steps < MIN_OBSERVATIONS:
            return 0.0
        step, row, token = (number / size for number, size in zip(self._numbers[:3], SCALE[:3], strict=True))
        reading = step * -(-prompt_tokens // chunk) + token * prompt_tokens
        return LOWER_BOUND_FACTOR * (reading + more_tokens * (step + row))
