"""choose_counts: how many drafts of each sequence a step computes, so that its time per token is shortest.

    time per token = (base_ms + row_ms * drafts) / (tokens without drafts + expected confirmed drafts)

The j-th draft of a sequence counts only if all before it are confirmed, so it adds rate ** j tokens on average. Drafts
are added by falling gain while one more makes the quotient smaller; with a cost that is linear in the rows no other
choice has a smaller one.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple


class Proposal(NamedTuple):
    """The drafts that one sequence could have.

    Attributes:
        length: how many, at least 1.
        rate: chance that a draft is confirmed if those before it are, in [0, 1].
    """

    length: int
    rate: float


def choose_counts(
    proposals: Sequence[Proposal], num_tokens: int, base_ms: float, row_ms: float, max_drafts: int
) -> list[int]:
    """Return the number of drafts of each proposal.

    Args:
        proposals: of the sequences that may have drafts.
        num_tokens: tokens that the step samples without drafts, at least 1.
        base_ms: expected milliseconds of the step without drafts.
        row_ms: milliseconds that one more row adds to it; 0 where nothing is known, and then all drafts are taken.
        max_drafts: bound of their sum.
    """
    counts = [0] * len(proposals)
    # By falling gain; equal gains in the order of the sequences.
    gains = [(-proposal.rate, place) for place, proposal in enumerate(proposals)]
    heapify(gains)
    tokens, milliseconds, left = float(num_tokens), base_ms, max_drafts
    while gains and left > 0:
        gain, place = -gains[0][0], gains[0][1]
        if gain * milliseconds <= row_ms * tokens:
            break
        counts[place] += 1
        left -= 1
        tokens += gain
        milliseconds += row_ms
        if counts[place] < proposals[place].length:
            heapreplace(gains, (-gain * proposals[place].rate, place))
        else:
            heappop(gains)
    return counts
