"""OOMBackoff: lowers the tokens of a step after one that ran out of memory, and raises them again later.

a step of T tokens fails       the next steps have at most T // 2, so they have at most that many rows, too
RISE_STEPS steps succeed       at most twice as many, until the limit has no effect any more
a raised limit fails again     the next raise takes twice as many steps, at most MAX_RISE_STEPS
one token fails twice          its request fails alone; the limit ends, since it was that request's fault
"""

RISE_STEPS = 64
"""Steps without a failure after which the limit is doubled."""

MAX_RISE_STEPS = 4096
"""Upper bound of the steps between two raises, where raised limits have failed."""


class OOMBackoff:
    """The limit of one engine. Reads no clock.

    Attributes:
        max_tokens: tokens of a step at most; None for no limit.
        num_failures: steps that ran out of memory since the start.
    """

    def __init__(self) -> None:
        self.max_tokens: int | None = None
        self.num_failures = 0
        self._rise_steps = RISE_STEPS
        self._num_successes = 0
        self._is_raised = False
        self._is_retry = False

    def bound(self, count: int) -> int:
        """Return the count of tokens or sequences, or the limit if that is lower."""
        return count if self.max_tokens is None else min(count, self.max_tokens)

    def shrink(self, num_tokens: int) -> bool:
        """Lower the limit after a step of so many tokens failed; return False if no step can be smaller.

        A step of one token is tried twice: memory that was freed after the first failure may suffice.
        """
        self.num_failures += 1
        self._num_successes = 0
        if self._is_raised:
            self._rise_steps = min(2 * self._rise_steps, MAX_RISE_STEPS)
            self._is_raised = False
        if num_tokens == 1 and self._is_retry:
            self.max_tokens, self._is_retry = None, False
            return False
        self._is_retry = num_tokens == 1
        self.max_tokens = self.bound(max(1, num_tokens // 2))
        return True

    def record_success(self, highest: int) -> None:
        """Count a step that succeeded; `highest` tokens are the limit of a step with enough memory."""
        self._is_retry = False
        if self.max_tokens is None:
            return
        self._num_successes += 1
        if self._num_successes >= self._rise_steps:
            self._num_successes, self._is_raised = 0, True
            self.max_tokens = None if 2 * self.max_tokens >= highest else 2 * self.max_tokens
