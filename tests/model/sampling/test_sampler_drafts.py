"""Sampler with drafts: each sequence has the tokens, logprobs and errors of steps with one token."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from chairlift.core.engine_output import TokenLogprob
from chairlift.core.errors import NonFiniteLogits
from chairlift.engine.step_plan import NO_DRAFT, NewSequence, TokenMasks
from chairlift.model.sampling.sampler import DraftTokens, Sampler, SamplerOutput
from support_sampling import VOCAB, head_of, logits_of, masks_of, params, random_sequences, sampler_with, sequence

SLOTS = 6


def step_by_step(
    sampler: Sampler, slot: int, logits: Tensor, drafts: list[int], allowed: dict[int, set[int]]
) -> tuple[list[int], list[TokenLogprob | None], bool]:
    """Sample rows [1 + d, V] of a slot in steps of their own; return tokens, logprobs and whether row 0 fails."""
    tokens, logprobs = list[int](), list[TokenLogprob | None]()
    for place in range(len(logits)):
        masks = masks_of(VOCAB, {0: allowed[place]}) if place in allowed else None
        output = sampler.sample(head_of(logits[place : place + 1]), np.array([slot]), masks)
        if output.row_errors:
            break
        tokens.append(int(output.tokens[0]))
        logprobs += output.logprobs or (None,)
        if place == len(drafts) or tokens[-1] != drafts[place]:
            break
    return tokens, logprobs, not tokens


def all_at_once(
    sampler: Sampler, slots: list[int], logits: list[Tensor], drafts: list[list[int]], masks: TokenMasks | None
) -> SamplerOutput:
    bounds = np.cumsum([0, *map(len, logits)]).astype(np.int32)
    next_drafts = np.array([token for each in drafts for token in (*each, NO_DRAFT)], np.int32)
    by_row = np.repeat(slots, [len(each) for each in logits])
    return sampler.sample(head_of(torch.cat(logits)), by_row, masks, DraftTokens(bounds, next_drafts))


def likely_drafts(rng: random.Random, sampler: Sampler, slot: int, logits: Tensor) -> list[int]:
    """Return drafts that often are what the rows sample: those of steps, the last of them sometimes another token."""
    drafts = list[int]()
    for place in range(len(logits) - 1):
        output = sampler.sample(head_of(logits[place : place + 1]), np.array([slot]))
        drafts.append(int(output.tokens[0]))
    if drafts and rng.random() < 0.5:
        drafts[rng.randrange(len(drafts))] = rng.randrange(VOCAB)
    return drafts


@pytest.mark.parametrize("seed", range(40))
def test_drafts_change_no_token_and_no_logprob(seed: int) -> None:
    rng = random.Random(seed)
    sequences = random_sequences(SLOTS, seed)
    stepped, together, proposing = (sampler_with(sequences) for _ in range(3))
    for step in range(4):
        logits = [logits_of(rng.randint(1, 5), seed=100 * seed + 10 * step + slot) for slot in range(SLOTS)]
        drafts = [likely_drafts(rng, proposing, slot, each) for slot, each in enumerate(logits)]
        allowed: list[dict[int, set[int]]] = [
            {place: set(rng.sample(range(VOCAB), 20)) for place in range(len(each))} if rng.random() < 0.2 else {}
            for each in logits
        ]
        first = np.cumsum([0, *map(len, logits)]).tolist()
        rows = {first[slot] + place: some for slot in range(SLOTS) for place, some in allowed[slot].items()}
        output = all_at_once(together, list(range(SLOTS)), logits, drafts, masks_of(VOCAB, rows) if rows else None)
        for slot in range(SLOTS):
            tokens, logprobs, fails = step_by_step(stepped, slot, logits[slot], drafts[slot], allowed[slot])
            begin, end = output.cu_tokens[slot : slot + 2]
            assert fails == (slot in output.row_errors)
            if not fails:
                assert output.tokens[begin:end].tolist() == tokens
                assert output.last_tokens[slot] == tokens[-1]
                assert list(output.logprobs[begin:end] if output.logprobs else [None] * len(tokens)) == logprobs
        sequences = [with_outputs(each, output, slot) for slot, each in enumerate(sequences)]
        proposing = sampler_with(sequences)


def with_outputs(before: NewSequence, output: SamplerOutput, slot: int) -> NewSequence:
    """Return a sequence with the tokens that it has sampled."""
    begin, end = output.cu_tokens[slot : slot + 2]
    new = () if slot in output.row_errors else output.tokens[begin:end].tolist()
    return replace(before, token_ids=(*before.token_ids, *new), num_output_tokens=before.num_output_tokens + len(new))


def test_a_row_that_fails_behind_a_draft_ends_the_tokens_before_it() -> None:
    logits = logits_of(3, seed=1)
    right = logits.argmax(dim=-1).tolist()
    logits[1] = torch.nan
    sampler = sampler_with([sequence(0, params(temperature=0.0))])
    output = all_at_once(sampler, [0], [logits], [right[:2]], None)
    assert output.tokens.tolist() == right[:1] and output.row_errors == {}
    again = sampler.sample(head_of(logits[1:2]), np.array([0]))
    assert isinstance(again.row_errors[0], NonFiniteLogits)


class Counting:
    """A logits processor that keeps the number of tokens at each call, and fails at `fails_at` tokens."""

    def __init__(self, fails_at: int) -> None:
        self.fails_at, self.lengths = fails_at, list[int]()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.lengths.append(input_ids.shape[1])
        if input_ids.shape[1] == self.fails_at:
            raise ValueError("no more")
        return scores


def test_a_processor_is_called_once_a_position_and_not_again_after_an_error() -> None:
    counting, logits = Counting(fails_at=4), logits_of(4, seed=1)
    right = logits.argmax(dim=-1).tolist()
    sampler = Sampler(1, VOCAB, {"counting": lambda: counting})
    sampler.add_sequence(sequence(0, params(temperature=0.0, logits_processors=["counting"]), prompt=(1, 2)))
    output = all_at_once(sampler, [0], [logits], [right[:3]], None)
    assert output.tokens.tolist() == right[:2] and output.row_errors == {} and counting.lengths == [2, 3, 4]
    again = sampler.sample(head_of(logits[2:3]), np.array([0]))
    assert list(again.row_errors) == [0] and counting.lengths == [2, 3, 4]


def test_a_row_behind_a_draft_whose_mask_allows_nothing_is_not_sampled() -> None:
    counting, logits = Counting(fails_at=99), logits_of(2, seed=1)
    right = logits.argmax(dim=-1).tolist()
    sampler = Sampler(1, VOCAB, {"counting": lambda: counting})
    sampler.add_sequence(sequence(0, params(temperature=0.0, logits_processors=["counting"]), prompt=(1, 2)))
    masks = masks_of(VOCAB, {0: set(right), 1: set()})
    assert all_at_once(sampler, [0], [logits], [right[:1]], masks).tokens.tolist() == right[:1]
    assert counting.lengths == [2]
    again = sampler.sample(head_of(logits[1:2]), np.array([0]))
    assert again.tokens.tolist() == right[1:] and not again.row_errors and counting.lengths == [2, 3]


def test_a_row_that_fails_first_is_the_error_of_its_sequence() -> None:
    logits = logits_of(2, seed=1)
    logits[0] = torch.nan
    sampler = sampler_with([sequence(slot, params(temperature=0.0)) for slot in range(2)])
    output = all_at_once(sampler, [0, 1], [logits, logits_of(1, seed=2)], [[3], []], None)
    assert list(output.row_errors) == [0] and output.cu_tokens.tolist() == [0, 1, 2]
