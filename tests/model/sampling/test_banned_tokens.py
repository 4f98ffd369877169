"""Repeated runs and bad words against their definitions, and against transformers."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from chairlift.model.sampling.banned_tokens import BadWords, TokenHistory, repeated_ngram_tokens
from support_sampling import is_forbidden, params
from support_shares import for_each

FEW = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@given(ids=FEW, size=st.integers(1, 70))
def test_a_token_that_ends_a_run_seen_before_is_banned(ids: list[int], size: int) -> None:
    chosen = params(no_repeat_ngram_size=size)
    right = [token for token in range(5) if is_forbidden((*ids, token), chosen)]
    assert repeated_ngram_tokens(np.array(ids), size).tolist() == right


@given(ids=FEW, words=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=8))
def test_the_last_token_of_a_bad_word_is_banned_behind_the_others(ids: list[int], words: list[list[int]]) -> None:
    made = BadWords(words)
    chosen = params(bad_words_ids=words)
    right = [token for token in range(5) if is_forbidden((*ids, token), chosen)]
    assert sorted({*made.always.tolist(), *made.next(np.array(ids)).tolist()}) == right
    assert made.needs_tail == any(len(word) > 1 for word in words)


@for_each("seed", range(10))
def test_both_are_those_of_transformers(seed: int) -> None:
    from transformers import NoBadWordsLogitsProcessor, NoRepeatNGramLogitsProcessor

    draw = np.random.default_rng(seed)
    ids = draw.integers(0, 6, 40)
    size = int(draw.integers(1, 5))
    words = [draw.integers(0, 6, count).tolist() for count in (1, 2, 2, 3)]
    scores, input_ids = torch.zeros(1, 6), torch.from_numpy(ids)[None]
    banned = NoRepeatNGramLogitsProcessor(size)(input_ids, scores)[0].isinf().nonzero().flatten().tolist()
    assert repeated_ngram_tokens(ids, size).tolist() == banned
    made, theirs = BadWords(words), NoBadWordsLogitsProcessor([list(word) for word in words], eos_token_id=7)
    banned = theirs(input_ids, scores.clone())[0].isinf().nonzero().flatten().tolist()
    assert sorted({*made.always.tolist(), *made.next(ids).tolist()}) == banned


def test_a_tail_grows_past_its_first_room() -> None:
    tail = TokenHistory((3, 1))
    for token in range(1000):
        tail.add(token)
    assert tail.ids.tolist() == [3, 1, *range(1000)]
