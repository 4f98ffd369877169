"""ExpectedDrafter, make_sequence: a drafter that knows the output of each request, and sequences for other drafters."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Items

from chairlift.core.block_hash import root_hash
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.sequence import Sequence
from chairlift.engine.structured.grammar_matcher import GrammarMatcher


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


def make_sequence(
    prompt: Items[int], output: Items[int] = (), *, tenant: str = "", salt: str = "", adapter: str = "",
    index: int = 0, grammar: GrammarMatcher | None = None,
) -> Sequence:  # fmt: skip
    """Make a running sequence with a prompt and the first tokens of its output."""
    params = SamplingParams(max_tokens=100_000, n=index + 1).with_defaults({}, max_tokens=1, seed=0)
    request = GenerateRequest(request_id="a", prompt_token_ids=tuple(prompt), params=params)
    sequence = Sequence(request, 0, root_hash("model", adapter, tenant, salt), 0.0, index, grammar)
    sequence.token_ids += output
    return sequence
