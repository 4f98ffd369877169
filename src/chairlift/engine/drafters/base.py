"""Drafter: the protocol of what guesses the next tokens of a sequence."""

from collections.abc import Sequence as Items
from typing import Protocol

from chairlift.engine.sequence import Sequence


class Drafter(Protocol):
    """Guesses tokens. A wrong guess costs time and changes no output."""

    def propose(self, sequence: Sequence, limit: int) -> Items[int]:
        """Return at most `limit` guesses at the tokens after those that a running sequence knows, in order.

        A sample may be in flight, which the first guess is about then. Takes much less time than a step.
        """
        ...
