"""Drafter: the protocol of what guesses the next tokens of a sequence."""

from collections.abc import Sequence as Items
from typing import Protocol, runtime_checkable

from chairlift.engine.sequence import Sequence


class Drafter(Protocol):
    """Guesses tokens. A wrong guess costs time and changes no output.

    Attributes:
        name: of the method, as metrics and the live page show it.
    """

    name: str

    def propose(self, sequence: Sequence, limit: int) -> Items[int]:
        """Return at most `limit` guesses at the tokens after those that a running sequence knows, in order.

        A sample may be in flight, which the first guess is about then. Takes much less time than a step.
        """
        ...


@runtime_checkable
class DraftsTogether(Protocol):
    """A Drafter that makes the drafts of a step's sequences together, before it is asked for those of each."""

    def prepare(self, requests: Items[tuple[Sequence, int]]) -> None:
        """Make at most the given number of drafts for each sequence, all of whose tokens are known.

        It may take a good part of a step, and ends no request whatever happens.
        """
        ...

    def will_propose(self, sequence: Sequence) -> bool:
        """Return whether a sequence should wait for its samples in flight, because it gets drafts then."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Release what it keeps of a sequence that has ended; it may keep nothing."""
        ...


@runtime_checkable
class GradesProposals(Protocol):
    """A Drafter whose proposals are not all equally good."""

    def grade(self, sequence: Sequence) -> int:
        """Return a number for the tokens that propose() has just returned for a sequence.

        Proposals with one number are confirmed about equally often; each number has a rate of its own.
        """
        ...


@runtime_checkable
class LearnsFromOutputs(Protocol):
    """A Drafter that uses the outputs of earlier requests."""

    def learn(self, sequence: Sequence) -> None:
        """Take the tokens of a sequence that has finished without an error; called once."""
        ...
