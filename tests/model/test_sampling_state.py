"""History and shaping by hand; SamplingState keeps what one slot needs and forgets it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import SamplingFailed, TokenOutOfRange
from chairlift.core.sampling import SamplingParams
from chairlift.model.sampling_state import History, SamplingState, Shaper, shape
from support_sampling import params, sequence, shaped_logits

TOKENS = st.lists(st.integers(0, 9), max_size=300)


@given(prompt=TOKENS, outputs=TOKENS, later=TOKENS)
def test_a_history_counts_outputs_and_knows_the_prompt(prompt: list[int], outputs: list[int], later: list[int]) -> None:
    history = History(prompt, outputs)
    for token in later:
        history.add(token)
    found = dict(zip(history.token_ids.tolist(), history.counts.tolist(), strict=True))
    assert found == {token: (outputs + later).count(token) for token in {*prompt, *outputs, *later}}


def test_a_history_grows_past_its_first_room() -> None:
    history = History((), range(1000))
    assert history.token_ids.tolist() == list(range(1000))
    assert history.counts.tolist() == [1] * 1000


@pytest.mark.parametrize(
    "chosen",
    [
        {"repetition_penalty": 1.5}, {"repetition_penalty": 0.5}, {"presence_penalty": 1.0},
        {"frequency_penalty": -1.0}, {"logit_bias": {2: 5.0, 6: -99.5, 7: -100.0}}, {"min_tokens": 3},
        {"min_tokens": 5, "stop_token_ids": (8,)},
        {"repetition_penalty": 2.0, "presence_penalty": -1.0, "frequency_penalty": 0.5, "logit_bias": {4: 1.0}},
    ],
)  # fmt: skip
def test_shaping_is_that_of_the_definitions(chosen: dict[str, object]) -> None:
    raw = torch.linspace(-3, 3, 10, dtype=torch.float64)
    new = sequence(0, params(**chosen), (1, 2, 6), (4, 4, 6))
    plain = sequence(1, params(min_tokens=1), (1,), (2,))
    logits = torch.stack([raw, raw])
    shape(logits, [Shaper(new, 10), Shaper(plain, 10)], np.array([3, 1]))
    np.testing.assert_allclose(logits[0].numpy(), shaped_logits(raw.numpy(), new), rtol=1e-15)
    assert torch.equal(logits[1], raw)


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ({}, False), ({"temperature": 0.0, "top_k": 3, "top_p": 0.5, "logprobs": 2, "stop_token_ids": (4,)}, False),
        ({"repetition_penalty": 1.1}, True), ({"presence_penalty": 0.1}, True), ({"frequency_penalty": -0.1}, True),
        ({"logit_bias": {1: 0.5}}, True), ({"min_tokens": 1}, True),
    ],
)  # fmt: skip
def test_state_is_kept_only_for_those_who_need_it(chosen: dict[str, object], wanted: bool) -> None:
    state = SamplingState(4, 10)
    state.admit(sequence(2, params(**chosen)))
    assert (2 in state.shapers) == wanted
    state.release(2)
    state.release(3)
    assert not state.shapers


def test_the_prompt_is_remembered_only_where_repetition_is_penalised() -> None:
    with_prompt = Shaper(sequence(0, params(repetition_penalty=1.1), (1, 2), (3,)), 10)
    without = Shaper(sequence(0, params(presence_penalty=1.0), (1, 2), (3,)), 10)
    assert with_prompt.history is not None
    assert without.history is not None
    assert with_prompt.history.token_ids.tolist() == [1, 2, 3]
    assert without.history.token_ids.tolist() == [3]
    assert Shaper(sequence(0, params(min_tokens=2)), 10).history is None


def test_a_model_s_end_token_beyond_the_vocabulary_is_no_reason_to_fail() -> None:
    shaper = Shaper(sequence(0, params(min_tokens=2), eos_token_ids=(3, 12)), 10)
    assert shaper.bans(1).tolist() == [3]
    assert shaper.bans(2).tolist() == []


def test_a_request_that_cannot_be_sampled_is_refused_and_its_slot_lives_on() -> None:
    state = SamplingState(2, 10)
    state.admit(sequence(0, params(min_tokens=1, stop_token_ids=(10,))))
    state.admit(sequence(1, SamplingParams()))
    assert isinstance(state.refused[0], TokenOutOfRange)
    assert isinstance(state.refused[1], SamplingFailed)
    assert "resolved" in str(state.refused[1].details["cause"])
    state.admit(sequence(0, params()))
    assert list(state.refused) == [1]


def test_draws_count_on_from_the_outputs_that_came_along() -> None:
    state = SamplingState(3, 10)
    state.admit(sequence(1, params(presence_penalty=1.0), (1,), (2, 3)))
    state.admit(sequence(2, params(), (1,), (2,)))
    assert state.observe(np.array([2, 1]), np.array([5, 6], np.int32), np.array([0, 1])) == {}
    assert state.num_outputs.tolist() == [0, 3, 2]
    history = state.shapers[1].history
    assert history is not None
    assert history.token_ids.tolist() == [2, 3, 6]
