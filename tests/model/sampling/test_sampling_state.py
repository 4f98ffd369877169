"""SamplingState: keeps the state of each slot and removes it."""

from typing import Any

import numpy as np
import pytest

from chairlift.core.errors import SamplingFailed, TokenOutOfRange
from chairlift.core.sampling_params import SamplingParams
from chairlift.model.sampling.sampling_state import SamplingState
from support_sampling import params, sequence
from support_shares import for_each


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ({}, False), ({"temperature": 0.0, "top_k": 3, "top_p": 0.5, "logprobs": 2, "stop_token_ids": (4,)}, False),
        ({"repetition_penalty": 1.1}, True), ({"presence_penalty": 0.1}, True), ({"frequency_penalty": -0.1}, True),
        ({"logit_bias": {1: 0.5}}, True), ({"min_tokens": 1}, True), ({"no_repeat_ngram_size": 2}, True),
        ({"bad_words_ids": ((1, 2),)}, True), ({"allowed_token_ids": (3,)}, True), ({"typical_p": 0.5, "n": 3}, False),
    ],
)  # fmt: skip
def test_state_is_kept_only_for_those_who_need_it(chosen: dict[str, object], wanted: bool) -> None:
    state = SamplingState(4, 10, {})
    state.add_sequence(sequence(2, params(**chosen)))
    assert (2 in state.row_processors) == wanted
    state.remove_slot(2)
    state.remove_slot(3)
    assert not state.row_processors


def test_a_request_that_cannot_be_sampled_is_refused_and_its_slot_lives_on() -> None:
    state = SamplingState(2, 10, {})
    state.add_sequence(sequence(0, params(min_tokens=1, stop_token_ids=(10,))))
    state.add_sequence(sequence(1, SamplingParams()))
    assert isinstance(state.slot_errors[0], TokenOutOfRange)
    assert isinstance(state.slot_errors[1], SamplingFailed)
    assert "resolved" in str(state.slot_errors[1].details["cause"])
    state.add_sequence(sequence(0, params()))
    assert list(state.slot_errors) == [1]


def test_choices_and_what_follows_from_them_are_those_of_the_slot() -> None:
    state = SamplingState(3, 10, {})
    state.add_sequence(sequence(1, params(n=3), choice_index=2))
    assert state.choice.tolist() == [0, 2, 0]
    state.add_sequence(sequence(1, params()))
    assert state.choice.tolist() == [0, 0, 0]


def test_draws_count_on_from_the_outputs_that_came_along() -> None:
    state = SamplingState(3, 10, {})
    state.add_sequence(sequence(1, params(presence_penalty=1.0), (1,), (2, 3)))
    state.add_sequence(sequence(2, params(), (1,), (2,)))
    assert state.observe(np.array([2, 1]), np.array([5, 6], np.int32), []) == {}
    assert state.num_outputs.tolist() == [0, 3, 2]
    history = state.row_processors[1].history
    assert history is not None
    assert history.token_ids.tolist() == [2, 3, 6]
    assert state.observe(np.array([2, 1]), np.array([5, 6], np.int32), [1]) == {}
    assert state.num_outputs.tolist() == [0, 3, 3] and len(history.token_ids) == 3, "a failed row has no new output"


@for_each(
    ("chosen", "more"),
    [
        ({"temperature": 0.0}, False), ({"temperature": 0.0, "top_p": 0.5}, False), ({"temperature": 0.7}, True),
        ({"temperature": 0.0, "logprobs": 0}, True), ({"temperature": 0.0, "min_tokens": 2}, True),
        ({"temperature": 0.0, "min_tokens": 1, "stop_token_ids": (10,)}, True),
    ],
)  # fmt: skip
def test_slots_of_which_more_is_wanted_than_the_likeliest_token_are_known(chosen: dict[str, Any], more: bool) -> None:
    state = SamplingState(3, 10, {})
    state.add_sequence(sequence(1, params(**chosen)))
    assert state.slots_needing_logits == ({1} if more else set())
    state.add_sequence(sequence(1, params(temperature=0.0)))
    state.add_sequence(sequence(2, params(**chosen)))
    assert state.slots_needing_logits == ({2} if more else set())
    state.remove_slot(2)
    assert not state.slots_needing_logits
