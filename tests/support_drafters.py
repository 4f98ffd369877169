"""ExpectedDrafter: a drafter that knows the output of each request, and is wrong as often as a test wants."""

import random
from collections.abc import Callable

from chairlift.engine.sequence import Sequence


class ExpectedDrafter:
    """Proposes a random number of the next tokens, each of them wrong with probability `wrong`.

    Behind the end of the output it proposes any tokens.

    Attributes:
        num_proposed: tokens that were proposed.
        num_right: those among them before the first wrong one of their proposal.
    """

    name = "expected"

    def __init__(
        self, rng: random.Random, expected: Callable[[Sequence], list[int]], vocab_size: int, wrong: float
    ) -> None:
        """`expected` returns the whole output of a sequence."""
        self._rng, self._expected, self._vocab_size, self._wrong = rng, expected, vocab_size, wrong
        self.num_proposed = self.num_right = 0

    def propose(self, sequence: Sequence, limit: int) -> list[int]:
        next_tokens = self._expected(sequence)[sequence.num_output_tokens :] + [
            self._rng.randrange(self._vocab_size) for _ in range(3)
        ]
        proposal: list[int] = []
        is_right = True
        for token in next_tokens[: self._rng.randint(0, limit)]:
            is_wrong = self._rng.random() < self._wrong
            is_right = is_right and not is_wrong
            proposal.append((token + 1) % self._vocab_size if is_wrong else token)
            self.num_right += is_right
        self.num_proposed += len(proposal)
        return proposal
