"""PromptLookupDrafter: what followed the last tokens where they occurred before."""

import gc
import random
from collections.abc import Sequence as Items

import pytest

from chairlift.engine.config import SpeculationConfig
from chairlift.engine.drafters import prompt_lookup
from chairlift.engine.drafters.prompt_lookup import (
    MAX_DIFFERENCE,
    MAX_MATCH,
    NO_MATCH,
    PromptLookupDrafter,
    SequenceIndex,
)
from chairlift.engine.sequence import Sequence
from support_drafters import make_sequence
from support_shares import for_each


def propose(tokens: Items[int], limit: int = 6, **options: int) -> list[int]:
    """Return the proposal for a new sequence."""
    config = SpeculationConfig(**{"prompt_lookup_min": 3, **options})
    return list(PromptLookupDrafter(config).propose(make_sequence(tokens), limit))


def test_what_followed_the_last_tokens_is_proposed() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5], 2) == [6, 7]
    assert propose([1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3]) == []
    assert propose([1, 2, 3]) == [] and propose([1]) == []


def test_a_proposal_is_not_much_longer_than_its_match() -> None:
    text = [*range(1, 40)]
    assert propose([*text, 1], 99, prompt_lookup_min=1) == text[1:5]
    assert propose([*text, 1, 2, 3, 4, 5], 99) == text[5:25]
    assert len(propose([*range(200), *range(100)], 99)) == MAX_MATCH


def test_longer_matches_have_a_higher_grade() -> None:
    drafter, text = PromptLookupDrafter(SpeculationConfig()), [*range(1, 40)]
    lengths = {
        length: drafter.grade(make_sequence([*text, 99, *text[:length]])) for length in (1, 2, 3, 4, 7, 8, 16, 30)
    }
    assert list(lengths.values()) == [1, 2, 2, 3, 3, 4, 5, 5]


def copying(num_copied: int, more: list[int]) -> tuple[PromptLookupDrafter, Sequence]:
    """Return a sequence that copies some of the numbers from 100 on, and differs from there; a drafter has seen it."""
    drafter = PromptLookupDrafter(SpeculationConfig())
    sequence = make_sequence([*range(100, 140), 1, *range(100, 100 + num_copied)])
    drafter.propose(sequence, 1)
    for token in more:
        sequence.token_ids.append(token)
        drafter.propose(sequence, 1)
    return drafter, sequence


@for_each(
    ("difference", "expected"),
    [
        ([7], 111),  # one token is replaced; the next is not known
        ([7, 111], 112), ([7, 111, 112], 113),
        ([7, 8, 9, 113], 114),  # three are replaced by three
        ([7, 8, 110], 111),  # two are inserted
        ([113], 114),  # three are left out
        ([7, 8, 9, 10, 111], 112),  # one is replaced by four
    ],
)  # fmt: skip
def test_a_copy_goes_on_behind_a_difference(difference: list[int], expected: int) -> None:
    drafter, sequence = copying(10, difference)
    proposal = drafter.propose(sequence, 3)
    assert list(proposal) == [*range(expected, expected + 3)]
    assert drafter.grade(sequence) == 8 + drafter.match(sequence).length.bit_length()


def test_a_place_that_is_not_near_is_an_ordinary_match() -> None:
    drafter, sequence = copying(10, [7, 100])
    assert list(drafter.propose(sequence, 3)) == [101, 102, 103] and drafter.grade(sequence) == 1


def test_the_place_behind_a_difference_is_preferred_to_one_with_as_many_equal_tokens() -> None:
    drafter = PromptLookupDrafter(SpeculationConfig())
    sequence = make_sequence([*range(100, 130), 112, 50, 51, 1, *range(100, 110)])
    drafter.propose(sequence, 1)
    for token in (7, 112):
        sequence.token_ids.append(token)
    assert list(drafter.propose(sequence, 2)) == [113, 114]


def test_a_copy_is_not_resumed_long_after_it_nor_after_few_tokens() -> None:
    for num_copied, more in ((10, [7] * 2), (10, [*range(10, 10 + MAX_DIFFERENCE + 1)]), (4, [7])):
        drafter, sequence = copying(num_copied, more)
        assert not drafter.match(sequence).is_resumed, more


def test_shorter_ngrams_are_tried_down_to_the_shortest() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3]
    assert propose(tokens, 2, prompt_lookup_min=2) == [4, 5]
    assert propose(tokens[:-1], 2, prompt_lookup_min=1) == [3, 4]


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
    assert propose([1, 2, 3] * 4 + [1, 2], 20) == [3, 1, 2] * 6 + [3, 1]
    assert propose([5] * 9, 20) == [5] * 20 and propose([5] * 30, 20) == [5] * 20
    assert propose([9, 1, 2, 3, 1, 2, 3, 1], 3) == [2, 3, 1]


def test_a_growing_sequence_has_the_proposals_of_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "MAX_DIFFERENCE", 0)  # a new one has copied nothing
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
    drafter = PromptLookupDrafter(SpeculationConfig(prompt_lookup_min=3))
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
