"""Sampler: every parameter against the numpy model, exactly and by chi-square; rows fail and sample independently."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from chairlift.core.errors import NoAllowedToken
from chairlift.model.sampling import sampler as sampler_module
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest, compute_lm_head_output
from chairlift.model.sampling.sampling_ops import TorchSamplingOps
from support_chi_square import chi_square_p
from support_sampling import (
    VOCAB,
    head_of,
    logits_of,
    masks_of,
    params,
    probabilities,
    processed_logits,
    random_params,
    random_sequences,
    sampler_with,
    sequence,
    token_by_model,
)
from support_shares import FULL, for_each

DRAWS = 20_000 if FULL else 5_000
PARAMS = {
    "neutral": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 6},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.08},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": -0.8},
    "logit_bias": {"logit_bias": {4: 3.0, 9: -2.0, 11: -100.0}},
    "min_tokens": {"min_tokens": 50, "stop_token_ids": (7,)},
    "typical_p": {"typical_p": 0.4},
    "epsilon_cutoff": {"epsilon_cutoff": 0.03},
    "eta_cutoff": {"eta_cutoff": 0.2},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": ((13,), (4, 9, 6, 20), (5, 6, 1))},
    "allowed_token_ids": {"allowed_token_ids": (2, 3, 5, 7, 11, 13, 17, 19, 23)},
    "all together": {
        "temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 0.8,
        "presence_penalty": -0.5, "frequency_penalty": 0.3, "logit_bias": {4: 1.0, 11: -100.0}, "min_tokens": 50,
    },
}  # fmt: skip
PROMPT, OUTPUTS = (1, 2, 2, 9, 3), (4, 4, 4, 9, 6)


@pytest.mark.share(1)
@pytest.mark.parametrize("name", PARAMS)
def test_many_draws_have_the_distribution_of_the_numpy_model(name: str) -> None:
    raw = logits_of(1, seed=5)
    new = sequence(0, params(**PARAMS[name]), PROMPT, OUTPUTS)
    sampler = sampler_with([replace(new, slot=slot, params=replace(new.params, seed=slot)) for slot in range(DRAWS)])
    output = sampler.sample(head_of(raw.expand(DRAWS, -1)), np.arange(DRAWS))
    expected_probabilities = probabilities(raw[0].numpy(), new)
    assert chi_square_p(np.bincount(output.tokens, minlength=VOCAB), expected_probabilities * DRAWS) > 1e-4
    if name != "neutral":
        neutral = probabilities(raw[0].numpy(), replace(new, params=params()))
        assert chi_square_p(np.bincount(output.tokens, minlength=VOCAB), neutral * DRAWS) < 1e-4


@for_each("name", ["temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "logit_bias"])
def test_the_positions_of_one_request_have_the_distribution_too(name: str) -> None:
    raw = logits_of(1, seed=6)
    new = sequence(0, params(seed=77, **PARAMS[name]))
    sampler = sampler_with([replace(new, slot=slot, num_output_tokens=slot) for slot in range(DRAWS)])
    output = sampler.sample(head_of(raw.expand(DRAWS, -1)), np.arange(DRAWS))
    assert chi_square_p(np.bincount(output.tokens, minlength=VOCAB), probabilities(raw[0].numpy(), new) * DRAWS) > 1e-4


def test_the_choices_of_a_request_draw_for_themselves() -> None:
    raw = logits_of(1, seed=7)
    new = sequence(0, params(seed=3, temperature=0.9, frequency_penalty=1.0), PROMPT)
    sampler = sampler_with([replace(new, slot=slot, choice_index=slot) for slot in range(DRAWS)])
    output = sampler.sample(head_of(raw.expand(DRAWS, -1)), np.arange(DRAWS))
    assert chi_square_p(np.bincount(output.tokens, minlength=VOCAB), probabilities(raw[0].numpy(), new) * DRAWS) > 1e-4
    following = sampler.sample(head_of(raw.expand(DRAWS, -1)[:50]), np.arange(50)).tokens
    for choice in range(50):
        continued = sequence(0, new.params, PROMPT, (int(output.tokens[choice]),), choice_index=choice)
        assert following[choice] == token_by_model(raw[0].numpy(), continued)


@pytest.mark.share(4)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(8 if FULL else 3))
def test_all_steps_of_a_sequence_equal_the_numpy_model(seed: int, dtype: torch.dtype) -> None:
    sequences = random_sequences(25, seed)
    sampler = sampler_with(sequences)
    for step in range(6):
        raw = logits_of(25, seed=100 * seed + step, dtype=dtype)
        output = sampler.sample(head_of(raw), np.arange(25))
        assert not output.row_errors
        expected = [token_by_model(raw[slot].double().numpy(), new) for slot, new in enumerate(sequences)]
        assert output.tokens.tolist() == expected
        sequences = [
            replace(new, token_ids=(*new.token_ids, token), num_output_tokens=new.num_output_tokens + 1)
            for new, token in zip(sequences, expected, strict=True)
        ]


@pytest.mark.share(1)
@pytest.mark.parametrize("vocab_size", [VOCAB, 1501])
def test_a_row_gives_the_same_token_and_logprobs_alone_and_in_fifty_batches(vocab_size: int) -> None:
    rng = np.random.default_rng(9)
    watched = replace(random_sequences(1, 4)[0], params=params(
        seed=12, temperature=0.8, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.4, logprobs=5,
    ))  # fmt: skip
    raw = logits_of(1, 1, vocab_size)
    alone = sampler_with([watched], vocab_size).sample(head_of(raw), np.zeros(1, np.int64))
    for batch in range(50):
        size = int(rng.integers(2, 30))
        slot = int(rng.integers(size))
        others = random_sequences(size, 1000 + batch)
        others[slot] = replace(watched, slot=slot)
        logits = logits_of(size, 2000 + batch, vocab_size)
        logits[slot] = raw[0]
        order = rng.permutation(size)
        output = sampler_with(others, vocab_size).sample(head_of(logits[torch.from_numpy(order)]), order)
        row = int(np.flatnonzero(order == slot)[0])
        assert output.tokens[row] == alone.tokens[0]
        assert output.logprobs[row] == alone.logprobs[0]


def test_readmission_with_the_outputs_so_far_goes_on_where_it_was() -> None:
    new = sequence(0, params(seed=5, repetition_penalty=1.3, presence_penalty=0.7), PROMPT)
    once, outputs = sampler_with([new]), []
    for step in range(8):
        outputs.append(int(once.sample(head_of(logits_of(1, step)), np.zeros(1, np.int64)).tokens[0]))
    again = sampler_with([sequence(0, random_params(np.random.default_rng(0)), (5,), (6, 7))])
    again.add_sequence(sequence(0, new.params, PROMPT, tuple(outputs[:5])))
    resumed = [int(again.sample(head_of(logits_of(1, step)), np.zeros(1, np.int64)).tokens[0]) for step in range(5, 8)]
    assert resumed == outputs[5:]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    new = sequence(
        0, params(temperature=0.3, top_k=2, repetition_penalty=2.0, logit_bias={4: 50.0}, logprobs=4), PROMPT
    )
    raw = logits_of(1, 11)
    output = sampler_with([new]).sample(head_of(raw), np.zeros(1, np.int64))
    right = raw[0].log_softmax(-1)
    entry = output.logprobs[0]
    assert entry is not None
    assert entry.token_id == output.tokens[0]
    assert entry.logprob == pytest.approx(float(right[entry.token_id]), rel=1e-12)
    assert [token for token, _ in entry.top] == right.argsort(descending=True)[:4].tolist()
    assert [value for _, value in entry.top] == pytest.approx(
        right.sort(descending=True).values[:4].tolist(), rel=1e-12
    )


def test_logprobs_come_only_to_rows_that_request_them() -> None:
    sequences = [sequence(0, params()), sequence(1, params(logprobs=0)), sequence(2, params(logprobs=2, temperature=0))]
    output = sampler_with(sequences).sample(head_of(logits_of(3)), np.arange(3))
    assert output.logprobs[0] is None
    assert [None if entry is None else len(entry.top) for entry in output.logprobs[1:]] == [0, 2]
    assert sampler_with(sequences).sample(head_of(logits_of(1)), np.zeros(1, np.int64)).logprobs == ()


def test_a_greedy_batch_is_one_argmax_and_takes_the_lowest_id_of_equal_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchSamplingOps, "sample_tokens", None)
    monkeypatch.setattr(sampler_module, "uniforms", None)
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [5.0, 0.0, 0.0, 5.0]]).bfloat16()
    sampler = sampler_with([sequence(slot, params(temperature=0.0)) for slot in range(2)], 4)
    assert sampler.sample(head_of(logits), np.arange(2)).tokens.tolist() == [1, 0]


def test_logits_of_sixteen_bits_are_processed_in_thirty_two() -> None:
    logits = torch.tensor([[7.96875, 8.0]]).bfloat16()
    sampler = sampler_with([sequence(0, params(temperature=0.0, logit_bias={1: -0.02}))], 2)
    assert sampler.sample(head_of(logits), np.zeros(1, np.int64)).tokens.tolist() == [1]


def test_the_logits_that_were_given_are_left_as_they_were() -> None:
    logits = logits_of(12)
    kept = logits.clone()
    sampler_with(random_sequences(12, 5)).sample(partial(compute_lm_head_output, logits), np.arange(12))
    assert torch.equal(logits, kept)


def test_a_step_without_rows_draws_nothing() -> None:
    output = sampler_with([sequence(0, params())]).sample(head_of(torch.empty(0, VOCAB)), np.empty(0, np.int64))
    assert len(output.tokens) == 0
    assert not output.row_errors


@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [VOCAB, 64, 1501])
def test_a_masked_row_draws_what_a_request_with_these_allowed_tokens_draws(vocab_size: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(vocab_size)
    sequences = random_sequences(30, 77)
    logits = logits_of(30, 8, vocab_size, dtype)
    allowed = {row: {int(token) for token in rng.choice(vocab_size, 12, replace=False)} for row in range(0, 30, 2)}
    output = sampler_with(sequences, vocab_size).sample(head_of(logits), np.arange(30), masks_of(vocab_size, allowed))
    for row, new in enumerate(sequences):
        only = set(new.params.allowed_token_ids or range(vocab_size)) & allowed.get(row, set(range(vocab_size)))
        restricted = replace(new, params=replace(new.params, allowed_token_ids=tuple(sorted(only))))
        if only and np.isfinite(processed_logits(logits[row].double().numpy(), restricted)).any():
            assert row not in output.row_errors
            assert output.tokens[row] == token_by_model(logits[row].double().numpy(), restricted)
        else:
            assert isinstance(output.row_errors[row], NoAllowedToken)
            assert "the structured output allows" in output.row_errors[row].message


class RecordingHead:
    """An lm_head that stores the LogitsRequest it gets."""

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw
        self.request: LogitsRequest

    def __call__(self, request: LogitsRequest) -> LMHeadOutput:
        self.request = request
        return compute_lm_head_output(self.raw.clone(), request)


@pytest.mark.parametrize(
    "row_params", [{"temperature": 0.5}, {"logprobs": 0}, {"frequency_penalty": 0.5}, {"min_tokens": 3}]
)
def test_logits_are_requested_only_for_rows_that_need_more_than_the_largest(row_params: dict[str, float]) -> None:
    sampler = sampler_with(
        [sequence(0, params(temperature=0.0)), sequence(1, params(**{"temperature": 0.0, **row_params}))]
    )
    head = RecordingHead(logits_of(2))
    sampler.sample(head, np.arange(2), masks_of(VOCAB, {0: {3, 5}, 1: {2, 4}}))
    assert head.request.needs_logits.tolist() == [False, True]
    is_unprocessed = set(row_params) == {"temperature"}
    assert head.request.masked_rows.tolist() == ([0, 1] if is_unprocessed else [0])
