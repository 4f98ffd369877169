"""LLM on a fake model: order, kinds of prompts, rejections, chat, stops, seeds and states."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from chairlift import LLM, SamplingParams
from chairlift.core.errors import ContextLengthExceeded, InvalidRequest, TokenOutOfRange
from chairlift.engine.config import SpeculationConfig
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService
from support_services import FAKE, fake_service, is_idle, text_of, tokens_of

SEEDED = SamplingParams(max_tokens=24, seed=3)


@pytest.fixture
def service() -> Iterator[TextService]:
    service = fake_service()
    yield service
    assert service.client.check_integrity() == []
    service.client.close()


@pytest.fixture
def llm(service: TextService) -> LLM:
    return LLM.from_service(service)


def run(llm: LLM, prompts: Any, params: Any = SEEDED, **options: Any) -> Any:
    return llm.generate(prompts, params, use_tqdm=False, **options)


# -- prompts and parameters --------------------------------------------------------------------------------------------


def test_outputs_come_in_the_order_of_the_prompts_whatever_ends_first(llm: LLM) -> None:
    prompts = [f"prompt {number}" for number in range(40)]
    params = [SamplingParams(max_tokens=40 - number, seed=number) for number in range(40)]
    results = run(llm, prompts, params)
    assert [result.prompt for result in results] == prompts
    assert [result.outputs[0].token_ids for result in results] == list(map(tokens_of, prompts, params))
    assert [result.outputs[0].text for result in results] == list(map(text_of, prompts, params))
    assert [result.outputs[0].seed for result in results] == list(range(40))
    assert len({result.request_id for result in results}) == 40


def test_one_params_serves_all_prompts(llm: LLM) -> None:
    results = run(llm, ["a", "bb"])
    assert [result.outputs[0].token_ids for result in results] == [tokens_of("a", SEEDED), tokens_of("bb", SEEDED)]


@pytest.mark.parametrize(
    "prompts",
    [
        [5, 6, 7], (5, 6, 7), range(5, 8), np.array([5, 6, 7]), np.array([5, 6, 7], np.uint8), torch.tensor([5, 6, 7]),
        [np.int64(5), 6, np.int32(7)], [torch.tensor(5), torch.tensor(6), torch.tensor(7)], [[5, 6, 7]],
        [np.array([5, 6, 7])], [torch.tensor([5, 6, 7])], np.array([[5, 6, 7]]), torch.tensor([[5, 6, 7]]),
    ],
)  # fmt: skip
def test_a_flat_list_of_ids_is_one_prompt_and_a_nested_one_is_many(llm: LLM, prompts: Any) -> None:
    (result,) = run(llm, prompts)
    assert result.prompt is None
    assert result.prompt_token_ids == [5, 6, 7]
    assert all(type(token) is int for token in result.prompt_token_ids)
    assert result.outputs[0].token_ids == tokens_of([5, 6, 7], SEEDED)


def test_strings_and_ids_may_stand_side_by_side(llm: LLM) -> None:
    text, ids = run(llm, ["ab", list(b"ab")])
    assert text.outputs[0].token_ids == ids.outputs[0].token_ids


@pytest.mark.parametrize(
    ("prompt", "text"), [({"prompt": "ab"}, "ab"), ({"prompt_token_ids": [97, 98]}, None),
                         ({"prompt": "ignored", "prompt_token_ids": [97, 98]}, None),
                         ({"prompt": "ab", "multi_modal_data": None}, "ab")]
)  # fmt: skip
def test_a_prompt_may_be_an_object(llm: LLM, prompt: Any, text: str | None) -> None:
    (result,) = run(llm, prompt)
    among_others = llm.generate(prompts=["x", prompt], sampling_params=SEEDED, use_tqdm=False)[1]
    assert result.prompt == among_others.prompt == text
    assert result.prompt_token_ids == among_others.prompt_token_ids == [97, 98]
    assert result.outputs[0].token_ids == among_others.outputs[0].token_ids == tokens_of("ab", SEEDED)


def test_the_salt_of_an_object_separates_cached_prefixes(llm: LLM) -> None:
    cached = [
        run(llm, {"prompt": "a prompt of some length", "cache_salt": salt})[0].num_cached_tokens
        for salt in ("a", "b", "a")
    ]
    assert cached == [0, 0, 20]


def test_a_prediction_of_each_prompt_or_of_all_changes_no_output() -> None:
    service = fake_service(speculation=SpeculationConfig(method="prediction"))
    llm, messages = LLM.from_service(service), [{"role": "user", "content": "a"}]
    expected = [text_of(prompt, SEEDED) for prompt in "ab"]
    wrong = expected[1][:5] + "@" * 20
    each = run(llm, ["a", "b"], prediction=[expected[0], None])
    both = run(llm, ["a", "b"], prediction=expected[0])
    [second] = run(llm, "b", prediction=wrong)
    assert second.outputs[0].text == expected[1] and second.usage.rejected_prediction_tokens > 0
    assert [[result.outputs[0].text for result in results] for results in (each, both)] == [expected, expected]
    accepted = [result.usage.accepted_prediction_tokens for result in (*each, *both)]
    assert accepted[0] > 0 and accepted[1] == 0 and accepted[2] > 0
    [chat] = llm.chat(messages, SEEDED, use_tqdm=False)
    [again] = llm.chat(messages, SEEDED, use_tqdm=False, prediction=[chat.outputs[0].token_ids])
    assert again.outputs[0].text == chat.outputs[0].text and again.usage.accepted_prediction_tokens > 0
    llm.close()


@pytest.mark.parametrize("prediction", [5, {}, [], ["a"], ["a", "b", "c"], ["a", 5]])
def test_a_prediction_must_be_a_text_or_one_for_each_prompt(llm: LLM, prediction: Any) -> None:
    with pytest.raises(InvalidRequest, match="prediction") as caught:
        llm.generate(["a", "b"], SEEDED, prediction=prediction, use_tqdm=False)
    assert caught.value.details["param"] == "prediction"


@pytest.mark.parametrize("resume", [5, "ab", {}, [], [()], [(), (), ()], [5, 6]])
def test_resume_must_be_a_list_of_outputs(llm: LLM, resume: Any) -> None:
    with pytest.raises(InvalidRequest, match="resume") as caught:
        llm.generate(["a", "b"], SEEDED, resume=resume, use_tqdm=False)
    assert caught.value.details["param"] == "resume"


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert run(llm, []) == []


@pytest.mark.parametrize(
    ("prompts", "params", "error", "message"),
    [
        (["ok", ""], SEEDED, InvalidRequest, "prompt"),
        (["ok", []], SEEDED, InvalidRequest, "prompt"),
        (["ok", 5], SEEDED, InvalidRequest, r"prompts\[1\]: a prompt must be a string or a list of ids, got 5"),
        (["ok", [1.5]], SEEDED, InvalidRequest, "float"),
        (["ok", [True]], SEEDED, InvalidRequest, "bool"),
        ([1.5, 2.5], SEEDED, InvalidRequest, "float"),
        (torch.tensor([0.5]), SEEDED, InvalidRequest, "float"),
        (np.array([True, False]), SEEDED, InvalidRequest, "bool"),
        (b"bytes", SEEDED, InvalidRequest, "bytes"),
        (["ok", b"bytes"], SEEDED, InvalidRequest, "bytes"),
        ({"text": "x"}, SEEDED, InvalidRequest, "prompt has the field 'text', which is not supported"),
        ({"prompt": None}, SEEDED, InvalidRequest, "prompt needs text in 'prompt' or token ids"),
        ([{"prompt": "x", "multi_modal_data": {}}], SEEDED, InvalidRequest, "multi_modal_data"),
        ({"prompt_token_ids": [128]}, SEEDED, TokenOutOfRange, "128"),
        ({1, 2}, SEEDED, InvalidRequest, "set"),
        ([["nested", "text"]], SEEDED, InvalidRequest, "str"),
        (None, SEEDED, InvalidRequest, "NoneType"),
        (7, SEEDED, InvalidRequest, "int"),
        (["ok", [1, 128]], SEEDED, TokenOutOfRange, "token id 128 is outside the vocabulary, which has 128"),
        (["ok", [-1]], SEEDED, TokenOutOfRange, "-1"),
        (["ok", "\ud800"], SEEDED, InvalidRequest, "half of a surrogate pair"),
        (["ok", "x" * 512], SEEDED, ContextLengthExceeded, "512 tokens, the limit is 512"),
        (["ok", "x" * 500], SamplingParams(max_tokens=13), ContextLengthExceeded, "500 tokens and max_tokens is 13"),
        (["ok", "x"], [SEEDED], InvalidRequest, "2 prompts, 1 SamplingParams"),
        (["ok", "x"], [SEEDED, {"seed": 1}], InvalidRequest, "must be SamplingParams, got dict"),
        (["ok", "x"], {"seed": 1}, InvalidRequest, "dict"),
        (["ok", "x"], [SEEDED, SamplingParams(stop_token_ids=(128,))], TokenOutOfRange, "stop_token_ids"),
        (["ok", "x"], [SEEDED, SamplingParams(logit_bias={999: 1})], TokenOutOfRange, "logit_bias"),
    ],
)  # fmt: skip
def test_one_invalid_request_raises_before_anything_is_queued(
    llm: LLM, prompts: Any, params: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(llm, prompts, params)
    state = llm.scheduler_state()
    assert state["steps"] == 0 and not any(state["finished_by_reason"].values())


@pytest.mark.parametrize(
    ("prompts", "params", "place"),
    [
        (["a", "b", "x" * 512], SEEDED, 2), (["a", ""], SEEDED, 1), ([[1], [], [2]], SEEDED, 1),
        ([[1], [128]], SEEDED, 1), (["", "a"], SEEDED, 0), (["a", b"b"], SEEDED, 1), (["a", "\ud800"], SEEDED, 1),
        (["a", {"text": "x"}], SEEDED, 1), (["a", {"prompt": "x", "cache_salt": 5}], SEEDED, 1),
        (["a", None], SEEDED, 1), (["a", "b"], [SEEDED, {"seed": 1}], 1),
        (["a", "b"], [SEEDED, SamplingParams(stop_token_ids=(128,))], 1),
        (["a", "b" * 500], SamplingParams(max_tokens=13), 1),
        (["a", "b" * 500], [SEEDED, SamplingParams(max_tokens=13)], 1),
    ],
)  # fmt: skip
def test_the_error_of_one_prompt_among_several_says_which(llm: LLM, prompts: Any, params: Any, place: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        run(llm, prompts, params)
    assert caught.value.message.startswith(f"prompts[{place}]: ")


@pytest.mark.parametrize(
    ("prompts", "params", "options"),
    [
        (["x" * 512], SEEDED, {}), ("x" * 512, SEEDED, {}), (["a", "b"], SEEDED, {"timeout": 0}),
        (["a", "b"], SEEDED, {"tenant": 5}), (["a", "b"], SamplingParams(stop_token_ids=(128,)), {}),
        (["a", "b"], SEEDED, {"resume": [[]]}), (["a", "b"], [SEEDED], {}),
    ],
)  # fmt: skip
def test_no_prompt_is_named_where_there_is_one_or_the_error_is_of_all(
    llm: LLM, prompts: Any, params: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        run(llm, prompts, params, **options)
    assert "prompts[" not in caught.value.message


@pytest.mark.parametrize(
    ("conversation", "params"),
    [
        ([{"role": "user", "content": "x" * 600}], SEEDED), ([], SEEDED), ([{"content": "a"}], SEEDED),
        ("text", SEEDED),
        ([{"role": "user", "content": "x"}], [SEEDED, SEEDED, {"seed": 1}]),
    ],
)  # fmt: skip
def test_the_error_of_one_conversation_among_several_says_which(llm: LLM, conversation: Any, params: Any) -> None:
    fine = [{"role": "user", "content": "a"}]
    with pytest.raises(InvalidRequest) as caught:
        llm.chat([fine, fine, conversation], params, use_tqdm=False)
    assert caught.value.message.startswith("conversations[2]: ")


def test_the_error_of_resume_says_of_which_prompt(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match=r"^prompts\[1\]: resume"):
        run(llm, ["a", "b"], resume=[[], [[128]]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 1.5}, "priority"), ({"priority": 2**40}, "priority"), ({"tenant": 5}, "tenant"),
        ({"tenant": "x" * 257}, "tenant"), ({"timeout": 0}, "timeout"), ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"), ({"timeout": float("inf")}, "timeout"), ({"timeout": "1"}, "timeout"),
    ],
)  # fmt: skip
def test_impossible_options_of_a_call_raise_before_anything_is_queued(
    llm: LLM, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        run(llm, ["a", "b"], **options)
    assert llm.scheduler_state()["steps"] == 0


# -- chat --------------------------------------------------------------------------------------------------------------


def test_a_flat_list_of_messages_is_one_conversation_and_a_nested_one_is_many(llm: LLM) -> None:
    hello, bye = [{"role": "user", "content": "hello"}], [{"role": "user", "content": "bye"}]
    (one,) = llm.chat(hello, SEEDED, use_tqdm=False)
    assert one.prompt == "user=hello;a="
    assert one.outputs[0].token_ids == tokens_of("user=hello;a=", SEEDED)
    first, second = llm.chat([hello, bye], [SEEDED, SamplingParams(max_tokens=2, seed=1)], use_tqdm=False)
    assert first.outputs[0].token_ids == one.outputs[0].token_ids
    assert second.prompt == "user=bye;a=" and len(second.outputs[0].token_ids) == 2


@pytest.mark.parametrize("messages", [[], "hello", {"role": "user", "content": "x"}, [[]], [5], None])
def test_impossible_messages_raise_before_anything_is_queued(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequest):
        llm.chat(messages, SEEDED, use_tqdm=False)
    assert llm.scheduler_state()["steps"] == 0


# -- how an output ends ------------------------------------------------------------------------------------------------


def test_max_tokens_ends_an_output_with_length_and_the_usage_adds_up(llm: LLM) -> None:
    (result,) = run(llm, "hello")
    assert result.outputs[0].finish_reason == "length"
    assert result.outputs[0].stop_reason is None and result.error is None
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.cached_tokens) == (5, 24, 0)


def test_without_max_tokens_the_output_is_as_long_as_fits(llm: LLM) -> None:
    (result,) = run(llm, "hello", SamplingParams(seed=1, max_tokens=None))
    assert len(result.prompt_token_ids) + len(result.outputs[0].token_ids) == FAKE.max_model_len


def test_cached_tokens_count_what_came_from_the_prefix_cache(llm: LLM) -> None:
    run(llm, "a prompt of some length")
    (second,) = run(llm, "a prompt of some length")
    assert second.usage.cached_tokens == 20  # five full blocks of four; at least one token is always computed
    assert second.outputs[0].token_ids == tokens_of("a prompt of some length", SEEDED)
    llm.flush_cache()
    assert run(llm, "a prompt of some length")[0].usage.cached_tokens == 0
    assert run(llm, "a prompt of some length", tenant="other")[0].usage.cached_tokens == 0


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_cuts_the_text_where_str_find_does(service: TextService, length: int, include: bool) -> None:
    llm = LLM.from_service(service)
    full = text_of("stop me", SamplingParams(max_tokens=200, seed=9))
    stop = full[60 : 60 + length]
    params = SamplingParams(max_tokens=200, seed=9, stop=stop, include_stop_str_in_output=include)
    (result,) = run(llm, "stop me", params)
    choice, at = result.outputs[0], full.find(stop)
    assert choice.text == full[: at + length if include else at]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert choice.token_ids == list(full[: at + length].encode())  # one token per character
    assert result.usage.completion_tokens == len(choice.token_ids)
    assert is_idle(service)


def test_a_stop_string_ends_the_request_in_the_engine_too() -> None:
    params = SamplingParams(max_tokens=400, seed=9, stop=text_of("stop me", SamplingParams(max_tokens=9, seed=9))[-3:])
    service = fake_service(replace(FAKE, seconds_per_step=0.005))
    with LLM.from_service(service) as llm:
        (result,) = run(llm, "stop me", params)
        state = llm.scheduler_state()
        assert is_idle(service)
    assert result.outputs[0].finish_reason == "stop"
    assert result.usage.completion_tokens == 9
    assert state["finished_by_reason"]["abort"] == 1 and state["steps"] < 200


def test_a_stop_string_that_ends_with_the_last_token_is_a_stop_all_the_same(llm: LLM) -> None:
    full = text_of("x", SEEDED)
    stop = full[-3:]
    assert full.find(stop) == 21
    (result,) = run(llm, "x", SamplingParams(max_tokens=24, seed=3, stop=[stop]))
    assert (result.outputs[0].finish_reason, result.outputs[0].text) == ("stop", full[:-3])


def test_the_beginning_of_a_stop_string_at_the_end_is_text(llm: LLM) -> None:
    full = text_of("x", SEEDED)
    (result,) = run(llm, "x", SamplingParams(max_tokens=24, seed=3, stop=[full[-2:] + "never"]))
    assert (result.outputs[0].finish_reason, result.outputs[0].text) == ("length", full)


def test_a_stop_token_is_in_the_ids_and_not_in_the_text(llm: LLM) -> None:
    full = tokens_of("x", SEEDED)
    stop = full[10]
    at = full.index(stop)
    (result,) = run(llm, "x", SamplingParams(max_tokens=24, seed=3, stop_token_ids=(stop,)))
    choice = result.outputs[0]
    assert choice.token_ids == full[: at + 1]
    assert choice.text == bytes(full[:at]).decode()
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)


def test_end_of_sequence_ends_an_output_unless_it_is_ignored() -> None:
    full = tokens_of("x", SEEDED)
    eos = full[10]
    at = full.index(eos)
    with LLM.from_service(fake_service(defaults=ModelDefaults(eos_token_ids=(99_999, eos)))) as llm:
        stopped, ignored = run(llm, ["x", "x"], [SEEDED, SamplingParams(max_tokens=24, seed=3, ignore_eos=True)])
    assert stopped.outputs[0].token_ids == full[: at + 1]
    assert stopped.outputs[0].text == bytes(full[:at]).decode()
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", None)
    assert ignored.outputs[0].token_ids == full
    assert ignored.outputs[0].text == bytes(full).decode()


def test_logprobs_are_one_a_token_also_where_a_stop_string_cuts(llm: LLM) -> None:
    full = text_of("x", SEEDED)
    with_stop = SamplingParams(max_tokens=24, seed=3, logprobs=0, stop=[full[7:9]])
    plain, cut, without = run(llm, ["x"] * 3, [SamplingParams(max_tokens=24, seed=3, logprobs=0), with_stop, SEEDED])
    for result in (plain, cut):
        choice = result.outputs[0]
        assert [entry.token_id for entry in choice.token_logprobs] == choice.token_ids
        assert all(entry.logprob == -1.0 and entry.top == () for entry in choice.token_logprobs)
    assert without.outputs[0].token_logprobs is None


def test_the_timeline_lists_the_events_in_order(llm: LLM) -> None:
    (result,) = run(llm, "x")
    events = result.timeline.events
    assert [event.name for event in events] == ["queued", "scheduled", "first_token", "finished"]
    times = [event.at for event in events]
    assert times[0] == 0 and times == sorted(times)


def test_the_timeline_says_what_a_request_waited_for() -> None:
    with LLM.from_service(fake_service(max_running_requests=1)) as llm:
        _, second = run(llm, ["first", "second"])
    assert dict(second.timeline.wait_seconds)["running_limit"] > 0


# -- seeds and defaults ------------------------------------------------------------------------------------------------


def test_a_seed_that_was_drawn_is_reported_and_gives_the_same_again(llm: LLM) -> None:
    first, second = run(llm, ["x", "x"], SamplingParams(max_tokens=8))
    assert first.outputs[0].seed != second.outputs[0].seed
    assert first.outputs[0].token_ids != second.outputs[0].token_ids
    second = SamplingParams(max_tokens=8, seed=first.outputs[0].seed)
    assert run(llm, "x", second)[0].outputs[0].token_ids == first.outputs[0].token_ids


def test_a_request_without_parameters_has_the_models_and_sixteen_tokens() -> None:
    with LLM.from_service(fake_service(defaults=ModelDefaults(sampling={"temperature": 0.0, "top_k": 3}))) as llm:
        params = llm.get_default_sampling_params()
        assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.0, 3, None, 16)
        (without,), (explicit,), (close_to_the_end,) = (
            llm.generate("x", use_tqdm=False), run(llm, "x", params), run(llm, "y" * 509, None)
        )  # fmt: skip
    assert without.outputs[0].token_ids == explicit.outputs[0].token_ids
    assert len(without.outputs[0].token_ids) == 16 and len(close_to_the_end.outputs[0].token_ids) == 3
    with LLM.from_service(fake_service(defaults=ModelDefaults(max_tokens=7))) as llm:
        assert llm.get_default_sampling_params().max_tokens == 7


def test_the_models_defaults_hold_where_a_request_asks_for_nothing() -> None:
    defaults = ModelDefaults(sampling={"temperature": 0.0}, max_tokens=7)
    with LLM.from_service(fake_service(defaults=defaults)) as llm:
        assert llm.defaults is defaults
        greedy, longer = run(llm, ["x", "x"], [None, SamplingParams(max_tokens=9)])
        (close_to_the_end,) = run(llm, "y" * 509, None)
    assert greedy.outputs[0].token_ids == tokens_of("x", SamplingParams(temperature=0, max_tokens=7))
    assert len(longer.outputs[0].token_ids) == 9
    assert len(close_to_the_end.outputs[0].token_ids) == 3  # as many as fit, without an error


# -- states ------------------------------------------------------------------------------------------------------------


def test_the_states_have_the_documented_keys(llm: LLM) -> None:
    run(llm, ["a", "b"])
    assert llm.cache_state().keys() >= {
        "total_blocks", "free_blocks", "cached_blocks", "allocated_blocks", "block_size", "memory_utilization",
    }  # fmt: skip
    cache = llm.cache_state()
    assert cache["free_blocks"] + cache["cached_blocks"] + cache["allocated_blocks"] == cache["total_blocks"] == 128
    assert llm.scheduler_state().keys() >= {"waiting_requests", "active_requests", "waiting_order", "wait_reasons"}
    assert llm.check_integrity() == []
    assert llm.load().running_requests == 0
    assert llm.startup_report == {"speculative decoding": "off: the method is none"}


def test_a_warm_up_changes_nothing(llm: LLM) -> None:
    (first,) = run(llm, "a b")
    before = llm.load(), llm.cache_state()
    assert llm.warmup() >= 0
    assert (llm.load(), llm.cache_state()) == before
    (second,) = run(llm, "a b")
    assert second.outputs[0].token_ids == first.outputs[0].token_ids


def test_a_model_without_a_tokenizer_takes_ids_and_gives_ids() -> None:
    with LLM.from_service(fake_service(with_tokenizer=False)) as llm:
        (result,) = run(llm, [1, 2, 3])
        assert result.outputs[0].token_ids == tokens_of([1, 2, 3], SEEDED)
        assert result.outputs[0].text == ""
        with pytest.raises(InvalidRequest, match="token ids"):
            run(llm, "text")
        with pytest.raises(InvalidRequest, match="tokenizer"):
            run(llm, [1, 2], SamplingParams(stop="x"))
        with pytest.raises(InvalidRequest, match="tokenizer"):
            llm.chat([{"role": "user", "content": "x"}], use_tqdm=False)
