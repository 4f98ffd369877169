"""Logits processing: history, penalties and masks against values computed by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chairlift.model.sampling.logits_processing import (
    RowLogitsProcessor,
    TokenCounts,
    apply_masks,
    process_logits,
    run_custom_processors,
)
from support_sampling import params, processed_logits, sequence
from support_shares import for_each

TOKENS = st.lists(st.integers(0, 9), max_size=300)


@given(prompt=TOKENS, outputs=TOKENS, later=TOKENS)
def test_a_history_counts_outputs_and_knows_the_prompt(prompt: list[int], outputs: list[int], later: list[int]) -> None:
    history = TokenCounts(prompt, outputs)
    for token in later:
        history.add(token)
    found = dict(zip(history.token_ids.tolist(), history.counts.tolist(), strict=True))
    assert found == {token: (outputs + later).count(token) for token in {*prompt, *outputs, *later}}


def test_a_history_grows_past_its_first_room() -> None:
    history = TokenCounts((), range(1000))
    assert history.token_ids.tolist() == list(range(1000))
    assert history.counts.tolist() == [1] * 1000


@for_each(
    "chosen",
    [
        {"repetition_penalty": 1.5}, {"repetition_penalty": 0.5}, {"presence_penalty": 1.0},
        {"frequency_penalty": -1.0}, {"logit_bias": {2: 5.0, 6: -99.5, 7: -100.0}}, {"min_tokens": 3},
        {"min_tokens": 5, "stop_token_ids": (8,)},
        {"repetition_penalty": 2.0, "presence_penalty": -1.0, "frequency_penalty": 0.5, "logit_bias": {4: 1.0}},
        {"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 9},
        {"bad_words_ids": ((3,), (4, 6, 1), (6, 2), (5, 6, 0))}, {"allowed_token_ids": (0, 4, 9)},
        {"allowed_token_ids": (1, 5, 6), "logit_bias": {5: 2.0}, "repetition_penalty": 1.2},
    ],
)  # fmt: skip
def test_shaping_is_that_of_the_definitions(chosen: dict[str, object]) -> None:
    raw = torch.linspace(-3, 3, 10, dtype=torch.float64)
    new = sequence(0, params(**chosen), (1, 2, 6), (4, 4, 6))
    plain = sequence(1, params(min_tokens=1), (1,), (2,))
    logits = torch.stack([raw, raw])
    process_logits(logits, [RowLogitsProcessor(new, 10, {}), RowLogitsProcessor(plain, 10, {})], np.array([3, 1]))
    np.testing.assert_allclose(logits[0].numpy(), processed_logits(raw.numpy(), new), rtol=1e-15)
    assert torch.equal(logits[1], raw)


def test_the_prompt_is_remembered_only_where_repetition_is_penalised() -> None:
    with_prompt = RowLogitsProcessor(sequence(0, params(repetition_penalty=1.1), (1, 2), (3,)), 10, {})
    without = RowLogitsProcessor(sequence(0, params(presence_penalty=1.0), (1, 2), (3,)), 10, {})
    assert with_prompt.history is not None
    assert without.history is not None
    assert with_prompt.history.token_ids.tolist() == [1, 2, 3]
    assert without.history.token_ids.tolist() == [3]
    assert RowLogitsProcessor(sequence(0, params(min_tokens=2)), 10, {}).history is None


def test_a_model_s_end_token_beyond_the_vocabulary_is_no_reason_to_fail() -> None:
    row_processor = RowLogitsProcessor(sequence(0, params(min_tokens=2), eos_token_ids=(3, 12)), 10, {})
    assert row_processor.bans(1).tolist() == [3]
    assert row_processor.bans(2).tolist() == []


def test_rows_without_a_shaper_are_left_as_they_are() -> None:
    raw = torch.linspace(-3, 3, 10, dtype=torch.float64).repeat(3, 1)
    logits = raw.clone()
    process_logits(
        logits,
        [None, RowLogitsProcessor(sequence(0, params(allowed_token_ids=(4,))), 10, {}), None],
        np.zeros(3, np.int64),
    )
    assert torch.equal(logits[[0, 2]], raw[[0, 2]])
    assert logits[1].isfinite().nonzero().flatten().tolist() == [4]


def test_bans_follow_the_tokens_that_are_added() -> None:
    row_processor = RowLogitsProcessor(
        sequence(0, params(no_repeat_ngram_size=2, bad_words_ids=((7, 8),)), (1, 2), (1,)), 10, {}
    )
    assert row_processor.bans(1).tolist() == [2]
    row_processor.add(7)
    assert row_processor.bans(2).tolist() == [8]
    row_processor.add(1)
    assert sorted(row_processor.bans(3).tolist()) == [2, 7]


@pytest.mark.parametrize("vocab_size", [31, 32, 33, 100])
def test_a_mask_bans_what_its_bits_do_not_allow(vocab_size: int) -> None:
    draw = np.random.default_rng(vocab_size)
    allowed = draw.random((3, vocab_size)) < 0.5
    padded = np.zeros((3, -(-vocab_size // 32) * 32), np.uint8)
    padded[:, :vocab_size] = allowed
    bits = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    for rows in ((0, 1, 2), (0, 2)):
        logits = torch.zeros(3, vocab_size)
        apply_masks(logits, [bits[row] if row in rows else None for row in range(3)])
        for row in range(3):
            right = allowed[row] if row in rows else np.ones(vocab_size, bool)
            assert (logits[row] == 0).tolist() == right.tolist()


def test_a_mask_of_fewer_words_than_there_are_tokens_bans_the_others() -> None:
    logits = torch.zeros(2, 100, dtype=torch.float64)
    apply_masks(logits, [np.array([-1, 1], np.int32), None])
    assert (logits[0] == 0).nonzero().flatten().tolist() == list(range(33)) and (logits[1] == 0).all()


def test_the_tail_that_a_processor_sees_is_its_own_copy() -> None:
    def greedy_hands(**arguments: int) -> object:
        def touch(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            input_ids.zero_()
            return scores.mul_(2)

        return touch

    row_processor = RowLogitsProcessor(
        sequence(0, params(logits_processors=["x"]), (1, 2), (3,)), 10, {"x": greedy_hands}
    )
    assert run_custom_processors(torch.ones(1, 10), [row_processor]) == {}
    assert row_processor.tail is not None and row_processor.tail.ids.tolist() == [1, 2, 3]
