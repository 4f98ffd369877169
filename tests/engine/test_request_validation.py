"""RequestLimits: every rejection gives the value and the limit."""

import pytest
from hypothesis import given
from hypothesis.strategies import integers, sampled_from

from chairlift.core.errors import ContextLengthExceeded, InvalidRequest, RequestTooLarge, TokenOutOfRange
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.request_validation import MAX_REQUEST_ID_CHARS, validate_request
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.scheduler.scheduler import Scheduler
from support_engine import make_request, make_scheduler
from support_shares import for_each


def limits(
    *, num_blocks: int = 10, max_model_len: int = 30, windows: tuple[int | None, ...] = (None,)
) -> RequestLimits:
    info = RunnerInfo(vocab_size=100, max_model_len=max_model_len, num_blocks=num_blocks, block_size=4, windows=windows)
    return RequestLimits.from_config(SchedulerConfig(max_batch_tokens=8), info)


def test_a_request_that_fits_is_validated_once() -> None:
    request = make_request("a", 20, 10)
    validated = validate_request(request, limits())
    assert validated.request is request and validated.limits == limits() and validated.request_id == "a"
    assert validate_request(validated, limits()) is validated


def test_a_validated_request_is_validated_again_against_other_limits() -> None:
    validated = validate_request(make_request("a", 20, 10), limits())
    with pytest.raises(ContextLengthExceeded):
        validate_request(validated, limits(max_model_len=29))
    assert validate_request(validated, limits(max_model_len=31)).limits == limits(max_model_len=31)


def test_the_scheduler_does_not_accept_a_request_of_another_engine() -> None:
    scheduler, other = make_scheduler(max_model_len=30), limits(max_model_len=31)
    with pytest.raises(AssertionError, match="limits of another engine"):
        Scheduler.add_request(scheduler, validate_request(make_request("a", 20, 11), other), 0.0)


@pytest.mark.parametrize("length", [MAX_REQUEST_ID_CHARS + 1, 10_000])
def test_a_long_id_is_refused(length: int) -> None:
    with pytest.raises(InvalidRequest, match=f"1 to 256 characters, got {length}"):
        validate_request(make_request("x" * length, 3), limits())


@pytest.mark.parametrize("token", [-1, 100, 2**40])
def test_a_token_that_does_not_exist_is_refused(token: int) -> None:
    """Pitfall 17."""
    with pytest.raises(TokenOutOfRange, match=f"token id {token} is outside the vocabulary, which has 100"):
        validate_request(make_request("a", [5, token, 7]), limits())


def test_a_stop_token_or_a_bias_that_does_not_exist_is_refused() -> None:
    """Pitfall 17."""
    with pytest.raises(TokenOutOfRange, match="stop_token_ids: token id 100"):
        validate_request(make_request("a", 3, stop=[100]), limits())
    biased = SamplingParams(logit_bias={250: 1.0}, max_tokens=3).with_defaults({}, max_tokens=1, seed=0)
    request = make_request("a", 3)
    with pytest.raises(TokenOutOfRange, match="logit_bias: token id 250"):
        validate_request(type(request)(request_id="a", prompt_token_ids=(1,), params=biased), limits())


def test_a_prompt_that_leaves_no_token_is_refused() -> None:
    with pytest.raises(ContextLengthExceeded, match="prompt has 30 tokens, the limit is 30 including at least one"):
        validate_request(make_request("a", 30, 1), limits())


def test_prompt_and_output_together_are_held_against_the_limit() -> None:
    validate_request(make_request("a", 20, 10), limits())
    with pytest.raises(
        ContextLengthExceeded, match="prompt has 20 tokens and max_tokens is 11, the limit of their sum is 30"
    ):
        validate_request(make_request("a", 20, 11), limits())


def test_what_the_whole_pool_cannot_hold_is_refused() -> None:
    """Pitfall 4."""
    validate_request(make_request("a", 15, 6), limits(num_blocks=5))
    with pytest.raises(RequestTooLarge, match="needs 6 blocks of the KV cache, which has 5"):
        validate_request(make_request("a", 15, 7), limits(num_blocks=5))


def test_a_time_that_is_up_at_once_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="timeout must be a positive number of seconds, got 0"):
        validate_request(make_request("a", 3, timeout=0), limits())


@given(integers(1, 40), integers(2, 60), sampled_from([(None,), (5,), (None, 5, 5), (3, 9)]), integers(1, 60))
def test_room_is_exactly_what_the_check_lets_through(
    num_blocks: int, max_model_len: int, windows: tuple[int | None, ...], prompt: int
) -> None:
    held = limits(num_blocks=num_blocks, max_model_len=max_model_len, windows=windows)
    room = held.max_output_tokens(prompt)
    for outputs in {max(room, 1), room + 1} - {0}:
        if outputs < 1:
            continue
        if outputs <= room:
            validate_request(make_request("a", prompt, outputs), held)
        else:
            with pytest.raises((ContextLengthExceeded, RequestTooLarge)):
                validate_request(make_request("a", prompt, outputs), held)


@for_each("token", [100, -1])
def test_a_predicted_token_outside_the_vocabulary_is_refused_by_name(token: int) -> None:
    assert validate_request(make_request("a", 20, predicted_token_ids=(0, 99)), limits()).request.predicted_token_ids
    with pytest.raises(TokenOutOfRange) as caught:
        validate_request(make_request("a", 20, predicted_token_ids=(5, token, 6)), limits())
    assert caught.value.details["param"] == "prediction"
