"""choose_counts: the counts have the shortest time per token of all counts, and none where a step is full."""

import random
from itertools import product

from chairlift.engine.scheduler.draft_budget import Proposal, choose_counts
from support_shares import for_each


def time_per_token(
    counts: tuple[int, ...], proposals: list[Proposal], num_tokens: int, base_ms: float, row_ms: float
) -> float:
    confirmed = sum(
        sum(proposal.rate**number for number in range(1, count + 1))
        for count, proposal in zip(counts, proposals, strict=True)
    )
    return (base_ms + row_ms * sum(counts)) / (num_tokens + confirmed)


@for_each("seed", range(200))
def test_no_other_counts_have_a_shorter_time_per_token(seed: int) -> None:
    rng = random.Random(seed)
    proposals = [Proposal(rng.randint(1, 4), rng.random()) for _ in range(rng.randint(1, 4))]
    others = (len(proposals) + rng.randrange(3), rng.uniform(1, 30), rng.uniform(0.01, 8))
    counts = choose_counts(proposals, *others, max_drafts=99)
    best = min(
        time_per_token(each, proposals, *others)
        for each in product(*(range(proposal.length + 1) for proposal in proposals))
    )
    assert time_per_token(tuple(counts), proposals, *others) <= best * (1 + 1e-9)


def test_a_bound_takes_the_most_likely_drafts() -> None:
    assert choose_counts([Proposal(5, 0.5), Proposal(5, 0.9)], 2, 100.0, 0.1, max_drafts=4) == [0, 4]
    assert choose_counts([Proposal(5, 0.5), Proposal(2, 0.9)], 2, 100.0, 0.1, max_drafts=4) == [2, 2]


def test_a_full_step_has_no_drafts() -> None:
    """Its time grows with its rows, so that a row which may be wrong costs as much as one that is right."""
    assert choose_counts([Proposal(8, 0.9)] * 64, 64, 64 * 1.0, 1.0, max_drafts=999) == [0] * 64
    assert choose_counts([Proposal(8, 0.9)], 1, 20.0, 1.0, max_drafts=999) == [8]


def test_without_a_known_cost_all_drafts_are_taken() -> None:
    assert choose_counts([Proposal(3, 0.1), Proposal(2, 0.0)], 2, 1.0, 0.0, max_drafts=9) == [3, 0]
    assert choose_counts([], 1, 1.0, 1.0, max_drafts=9) == []
