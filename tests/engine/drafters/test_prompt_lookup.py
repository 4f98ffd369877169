"""PromptLookupDrafter: what followed the last tokens where they occurred before."""

import gc
import random
from collections.abc import Sequence as Items

import pytest

from chairlift.engine.config import SpeculationConfig
from chairlift.engine.drafters import prompt_lookup
from chairlift.engine.drafters.prompt_lookup import MAX_MATCH, NO_MATCH, PromptLookupDrafter, SequenceIndex
from support_drafters import make_sequence
from support_shares import for_each


def propose(tokens: Items[int], limit: int = 6, **options: int) -> list[int]:
    """Return the proposal for a new sequence."""
    return list(PromptLookupDrafter(SpeculationConfig(**options)).propose(make_sequence(tokens), limit))


def test_what_followed_the_last_tokens_is_proposed() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5], 2) == [6, 7]
    assert propose([1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3]) == []
    assert propose([1, 2, 3]) == [] and propose([1]) == []


def test_a_proposal_is_not_longer_than_its_match() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], 9) == [4, 5, 6]
    assert propose([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5], 9) == [6, 7, 8, 9, 10]


def test_shorter_ngrams_are_tried_down_to_the_shortest() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3]
    assert propose(tokens, 2, prompt_lookup_min=2) == [4, 5]
    assert propose(tokens[:-1], 2, prompt_lookup_min=1) == [3]


def test_the_longest_match_is_taken_and_of_equal_ones_the_latest() -> None:
    long, short = [1, 2, 3, 4, 50], [9, 2, 3, 4, 60]
    for first, second in ((long, short), (short, long)):
        assert propose([*first, *second, 1, 2, 3, 4], 1) == [50]
    assert propose([8, 2, 3, 4, 50, 9, 2, 3, 4, 60, 7, 2, 3, 4], 1) == [60]


def test_a_copy_stays_at_its_place_of_the_original() -> None:
    """Ten tokens occur three times in the prompt; what is before them tells which place is being copied."""
    phrase = list(range(100, 110))
    prompt = [1, 2, 3, *phrase, 4, 5, 6, *phrase, 7, 8, 9, *phrase, 10]
    assert propose([*prompt, 4, 5, 6, *phrase], 3) == [7, 8, 9]


def test_a_text_that_repeats_goes_on_repeating() -> None:
    assert propose([1, 2, 3] * 4 + [1, 2], 20) == [3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
    assert propose([5] * 9, 20) == [5] * 8 and propose([5] * 30, 20) == [5] * 20
    assert propose([9, 1, 2, 3, 1, 2, 3, 1], 3) == [2, 3, 1]


def test_a_growing_sequence_has_the_proposals_of_a_new_one() -> None:
    rng = random.Random(1)
    config = SpeculationConfig(prompt_lookup_min=2, prompt_lookup_max=4)
    for _ in range(8):
        vocab_size = rng.choice([6, 12, 40])
        drafter = PromptLookupDrafter(config)
        sequence = make_sequence([rng.randrange(vocab_size) for _ in range(rng.choice([1, 3, 60, 250]))])
        for _ in range(60):
            sequence.token_ids += [rng.randrange(vocab_size) for _ in range(rng.choice([1, 1, 1, 4, 70]))]
            limit = rng.randrange(1, 9)
            new = PromptLookupDrafter(config).propose(make_sequence(sequence.token_ids), limit)
            assert list(drafter.propose(sequence, limit)) == list(new) == list(drafter.propose(sequence, limit))


def longest_matches(tokens: list[int], least: int) -> tuple[int, int]:
    """Return (length, position) of the latest longest earlier match, found by comparing all places."""
    best = NO_MATCH
    for position in range(len(tokens) - 2, -1, -1):
        length = 0
        while length <= position and tokens[position - length] == tokens[-1 - length]:
            length += 1
        if length >= least and min(length, MAX_MATCH) > best[0]:
            best = prompt_lookup.Match(min(length, MAX_MATCH), position)
    return best


@for_each("seed", range(4))
def test_the_match_is_the_longest_of_all_places(seed: int) -> None:
    rng = random.Random(seed)
    num_matches = 0
    for _ in range(60):
        tokens = [rng.randrange(20) for _ in range(rng.randrange(1, 200))]
        for _ in range(rng.randrange(4)):
            start = rng.randrange(len(tokens))
            tokens += tokens[start : start + rng.randrange(1, 90)]
        match = SequenceIndex(SpeculationConfig(prompt_lookup_min=2, prompt_lookup_max=5)).match(tokens)
        assert match == longest_matches(tokens, 2)
        num_matches += match.length > 2
    assert num_matches > 20


def test_a_long_prompt_is_indexed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "MAX_BULK_TOKENS", 100)
    sequence = make_sequence([*range(1000), 950, 951, 952])
    drafter = PromptLookupDrafter(SpeculationConfig())
    proposals = []
    for token in range(953, 970):
        proposals.append(list(drafter.propose(sequence, 2)))
        sequence.token_ids.append(token)
    assert proposals[0] == [] and proposals[8] == [] and proposals[9:] == [[at, at + 1] for at in range(962, 970)]


def test_nothing_is_kept_of_a_sequence_that_has_ended() -> None:
    drafter = PromptLookupDrafter(SpeculationConfig())
    sequence = make_sequence([1, 2, 3] * 5)
    assert drafter.propose(sequence, 3) and len(drafter._indexes) == 1
    del sequence
    gc.collect()
    assert not len(drafter._indexes)


def test_two_choices_do_not_share_their_places() -> None:
    drafter = PromptLookupDrafter(SpeculationConfig())
    first, second = (make_sequence([1, 2, 3, 4, 1, 2, 3], index=index) for index in range(2))
    first.token_ids += [9, 1, 2, 3]
    assert list(drafter.propose(first, 1)) == [9] and list(drafter.propose(second, 1)) == [4]
