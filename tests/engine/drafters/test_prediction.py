"""PredictionDrafter: follows an output through its prediction, and finds it again behind a difference."""

import gc
import random
from collections.abc import Sequence as Items

from chairlift.core.block_hash import root_hash
from chairlift.engine.drafters.prediction import INDEXED_TOKENS, MATCHED_TOKENS, PredictedTokens, PredictionDrafter
from chairlift.engine.sequence import Sequence
from support_engine import make_request
from support_shares import for_each

TEXT = tuple(range(100, 140))
"""A prediction in which each token occurs once."""


def make_sequence(
    predicted: Items[int] = TEXT, *, name: str = "a", resumed: Items[int] = (), index: int = 0
) -> Sequence:
    request = make_request(
        name, 5, 5000, predicted_token_ids=tuple(predicted), resume=(tuple(resumed),) if resumed else (), n=4
    )
    return Sequence(request, 0, root_hash("m", "", "", ""), 0.0, index)


def proposal_after(
    output: Items[int], predicted: Items[int] = TEXT, *, limit: int = 4, at_once: bool = False
) -> list[int]:
    """Return what is proposed behind an output of which each token, or all of them together, came in a step."""
    sequence, drafter = make_sequence(predicted), PredictionDrafter()
    proposal = drafter.propose(sequence, limit)
    for start in range(0, len(output), len(output) if at_once else 1):
        sequence.token_ids += output[start:] if at_once else output[start : start + 1]
        proposal = drafter.propose(sequence, limit)
    return list(proposal)


def test_without_a_prediction_nothing_is_proposed() -> None:
    assert proposal_after([], predicted=()) == proposal_after([1, 2, 3, 4], predicted=()) == []


def test_the_beginning_is_proposed_at_the_beginning_of_the_output() -> None:
    assert proposal_after([]) == [100, 101, 102, 103] and proposal_after([], limit=2) == [100, 101]
    assert proposal_after([], predicted=TEXT[:3]) == [100, 101, 102]


@for_each("at_once", [False, True])
@for_each(("output", "proposal"), [
    ([100, 101], [102, 103, 104, 105]),  # equal
    ([100, 101, 7], []),  # differs
    ([100, 101, 7, 103, 104], []),  # too few equal tokens
    ([100, 101, 7, 103, 104, 105], [106, 107, 108, 109]),  # a token is replaced
    ([100, 101, 7, 8, 9, 102, 103, 104], [105, 106, 107, 108]),  # tokens are inserted
    ([100, 101, 120, 121, 122], [123, 124, 125, 126]),  # tokens are left out
    ([7, 8, 9, 100, 101, 102], [103, 104, 105, 106]),  # other text before
    ([130, 131, 132, 7, 105, 106, 107], [108, 109, 110, 111]),  # an earlier part later
    ([*TEXT[-6:]], []),  # at the end
    ([*TEXT[-6:], 100, 101, 102], [103, 104, 105, 106]),  # again from the beginning
])  # fmt: skip
def test_what_follows_the_last_equal_tokens_is_proposed(output: list[int], proposal: list[int], at_once: bool) -> None:
    assert proposal_after(output, at_once=at_once) == proposal


def test_the_nearest_place_behind_is_preferred_and_else_the_last_one_before() -> None:
    run = [7, 8, 9]
    predicted = [*run, 1, 50, 51, 52, 53, *run, 2, 60, 61, *run, 3]
    assert proposal_after([*run, 1, 50, 0, *run], predicted) == [2, 60, 61, 7]
    assert proposal_after([*predicted[:11], 2, 60, 0, *run], predicted) == [3]
    assert proposal_after([*predicted, *run], predicted) == [3]


def test_tokens_of_the_prompt_are_no_output() -> None:
    sequence = make_sequence([1, 2, 3, 4, 5, 6, 7])
    assert list(PredictionDrafter().propose(sequence, 2)) == [1, 2]


def test_resumed_tokens_are_followed_as_output() -> None:
    sequence = make_sequence(resumed=[100, 7, 102, 103, 104])
    assert list(PredictionDrafter().propose(sequence, 2)) == [105, 106]


def test_each_choice_has_a_place_of_its_own_in_the_tokens_that_all_share() -> None:
    drafter = PredictionDrafter()
    first, second = make_sequence(), make_sequence(index=1)
    assert first.request.predicted_token_ids is second.request.predicted_token_ids
    first.token_ids += [100, 101]
    second.token_ids += [100, 7]
    for _ in range(2):
        assert list(drafter.propose(first, 2)) == [102, 103] and list(drafter.propose(second, 2)) == []
    assert len({id(cursor.predicted) for cursor in drafter._cursors.values()}) == 1


def test_a_later_request_of_the_same_id_has_a_prediction_of_its_own() -> None:
    drafter = PredictionDrafter()
    first, second = make_sequence(), make_sequence([5, 6, 7])
    assert list(drafter.propose(first, 2)) == [100, 101] and list(drafter.propose(second, 2)) == [5, 6]


def test_what_is_known_of_a_sequence_ends_with_it() -> None:
    drafter = PredictionDrafter()
    drafter.propose(make_sequence(), 2)
    gc.collect()
    assert not len(drafter._cursors) and not len(drafter._predicted)


def test_a_long_prediction_is_indexed_in_parts() -> None:
    token_ids = tuple(range(3 * INDEXED_TOKENS))
    predicted = PredictedTokens(token_ids)
    found = []
    for _ in range(4):
        found.append(predicted.position_behind(token_ids[-MATCHED_TOKENS:], 0))
        predicted.index_more()
    assert found == [None, None, None, len(token_ids)]
    assert predicted.position_behind((0, 1, 2), 5) == 3 and predicted.position_behind((0, 1, 3), 0) is None


def test_random_edits_of_a_text_are_mostly_proposed() -> None:
    rng = random.Random(5)
    predicted = [rng.randrange(50) for _ in range(1000)]
    output = list(predicted)
    for place in sorted(rng.sample(range(20, 980), 10), reverse=True):
        output[place : place + rng.randrange(5)] = [rng.randrange(50) for _ in range(rng.randrange(5))]
    sequence, drafter = make_sequence(predicted), PredictionDrafter()
    num_steps = num_wrong = known = 0
    while known < len(output):
        proposal, num_equal = drafter.propose(sequence, 16), 0
        while num_equal < len(proposal) and output[known + num_equal : known + num_equal + 1] == [proposal[num_equal]]:
            num_equal += 1
        num_wrong += len(proposal) - num_equal
        sequence.token_ids += output[known : known + num_equal + 1]
        known, num_steps = known + num_equal + 1, num_steps + 1
    assert num_steps < len(output) / 7 and num_wrong < len(output) / 4
