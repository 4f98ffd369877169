"""RequestState: the fields and methods of transformers' class."""

import inspect

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.standalone_scheduler import limits_of
from chairlift.llm.transformers_compat.request_state import RequestState
from chairlift.llm.transformers_compat.request_status import RequestStatus

LIMITS = limits_of(KVCacheManager(CacheConfig(num_blocks=10, block_size=4)), SchedulerConfig())


def decoding(**options: object) -> RequestState:
    state = RequestState("a", [1, 2, 3], **options)  # type: ignore[arg-type]
    state.status = RequestStatus.DECODING
    return state


def test_the_constructor_takes_the_first_fields_of_transformers_in_their_order() -> None:
    from transformers.generation.continuous_batching import RequestState as Theirs

    shared = 8
    theirs, ours = list(inspect.signature(Theirs).parameters), list(inspect.signature(RequestState).parameters)
    assert theirs[:shared] == ours[:shared]
    assert all(name in vars(Theirs("a", [1])) for name in ("generated_tokens", "position_offset", "allocated_blocks"))


@pytest.mark.parametrize("name", ["initial_tokens", "prompt_ids", "full_prompt_ids"])
def test_the_prompt_has_its_older_names(name: str) -> None:
    state = RequestState(request_id="a", **{name: [4, 5]})
    assert state.initial_tokens == state.full_prompt_ids == state.remaining_prefill_tokens == [4, 5]
    assert state.remaining_prompt_ids == [4, 5] and state.status is RequestStatus.PENDING


@pytest.mark.parametrize(("eos", "ends_at"), [(None, 4), (-1, 4), (8, 2), ([99, 8], 2), ([-1], 4)])
def test_a_request_is_finished_at_its_end_token_or_its_length(eos: object, ends_at: int) -> None:
    state = decoding(max_new_tokens=4, eos_token_id=eos)
    given = [7, 8, 7, 7, 7]
    ends = [state.update_and_check_completion(token) for token in given]
    assert ends.index(True) == ends_at - 1 and state.generated_tokens == given[:ends_at]
    assert state.status is RequestStatus.FINISHED and state.lifespan[1] >= state.lifespan[0] > 0


def test_only_a_decoding_request_takes_tokens() -> None:
    state = RequestState("a", [1])
    assert not state.update_and_check_completion(5) and state.generated_len() == 0


def test_an_output_does_not_change_with_the_request() -> None:
    state = decoding(record_timestamps=True)
    state.update_and_check_completion(5, -0.5)
    output = state.to_generation_output()
    state.update_and_check_completion(6, -0.25)
    assert (output.generated_tokens, output.logprobs, len(output.timestamps or [])) == ([5], [-0.5], 1)
    assert (output.prompt_ids, output.status) == ([1, 2, 3], RequestStatus.DECODING)
    assert state.to_generation_output().generated_tokens == [5, 6]


def test_a_request_that_goes_on_keeps_its_prompt_and_its_output() -> None:
    state = decoding(max_new_tokens=5, logit_processor_kwargs={"top_k": 3}, eos_token_id=9)
    for token in (5, 6):
        state.update_and_check_completion(token)
    again = state.create_equivalent_initial_request().create_equivalent_initial_request()
    assert (again.request_id, again.initial_tokens, again.max_new_tokens) == ("a", [1, 2, 3, 5, 6], 3)
    assert again.logit_processor_kwargs == {"top_k": 3} and again.eos_token_id == (9,)
    again.status = RequestStatus.DECODING
    again.update_and_check_completion(7)
    output = again.to_generation_output()
    assert (output.prompt_ids, output.generated_tokens) == ([1, 2, 3], [5, 6, 7])


def test_children_are_requests_of_their_own() -> None:
    state = RequestState("a", [1, 2], num_children=2)
    children = state.children()
    assert [child.request_id for child in children] == ["a__child#0", "a__child#1"]
    assert all(child.num_children == 0 and child.lifespan == (-1, -1) for child in children)
    children[0].generated_tokens.append(3)
    assert state.generated_tokens == []


def test_the_engines_request_is_greedy_unless_it_has_parameters() -> None:
    plain = RequestState("a", [1, 2], max_new_tokens=None, eos_token_id=3).to_request(LIMITS)
    assert (plain.params.temperature, plain.params.max_tokens, plain.eos_token_ids) == (0.0, 38, (3,))
    own = RequestState("b", [1], logit_processor_kwargs={"temperature": 0.7, "top_k": 4}).to_request(LIMITS, seed=6)
    assert (own.params.temperature, own.params.top_k, own.params.max_tokens, own.params.seed) == (0.7, 4, 20, 6)
    with pytest.raises(InvalidRequest, match="did you mean 'top_k'"):
        RequestState("c", [1], logit_processor_kwargs={"topk": 4}).to_request(LIMITS)
