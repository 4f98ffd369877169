"""resolve_settings and request_params: both configurations of transformers, keyword arguments, one request's own."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig as Theirs

from chairlift.core.errors import ConfigError, InvalidRequest, UnknownOption
from chairlift.core.foreign_options import OptionEffect
from chairlift.llm.build import validate_options
from chairlift.llm.transformers_compat import given_options as module
from chairlift.llm.transformers_compat.continuous_batching_config import ContinuousBatchingConfig
from chairlift.llm.transformers_compat.option_table import BATCHING, GENERATION
from chairlift.llm.transformers_compat.settings import ManagerSettings, request_params, resolve_settings

UNBOUNDED = {"max_queue_size": 2**31 - 1}
"""The options of an engine whose manager counts the waiting requests."""

NO_EFFECT = {name: spec for name, spec in (BATCHING | GENERATION).items() if spec.effect is OptionEffect.NONE}
WITHOUT_EFFECT = [name for name, spec in NO_EFFECT.items() if spec.reason]
SILENT = [name for name, spec in NO_EFFECT.items() if not spec.reason]


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_logged", set())


def options_of(*configs: Any, **knobs: Any) -> dict[str, Any]:
    resolved = dict(resolve_settings(*configs, knobs=knobs).options)
    validate_options(resolve_settings(*configs, knobs=knobs).options)
    assert resolved.pop("max_queue_size") == UNBOUNDED["max_queue_size"]
    return resolved


def temperature_of(settings: ManagerSettings, **request: Any) -> float | None:
    return request_params(settings, **request)[0].temperature


def test_without_configuration_the_defaults_are_chairlifts_and_greedy() -> None:
    for settings in (resolve_settings(), resolve_settings(GenerationConfig(), Theirs()), resolve_settings({}, {}, {})):
        assert settings == ManagerSettings(options=UNBOUNDED, sampling={"temperature": 0.0})  # type: ignore[typeddict-item]
        params, eos = request_params(settings)
        assert (params.temperature, params.top_k, params.max_tokens, params.logprobs, eos) == (
            0,
            None,
            None,
            None,
            None,
        )


@pytest.mark.parametrize("config", [Theirs, ContinuousBatchingConfig, dict])
def test_the_fields_of_the_new_configuration_are_options_of_the_engine(config: Any) -> None:
    given = config(
        page_size=32, num_blocks=64, max_batch_tokens=512, max_memory_percent=0.5, max_requests_per_batch=7,
        allow_block_sharing=False, use_async_batching=True, scheduler_type="prefill_first",
    )  # fmt: skip
    assert options_of(None, given) == {
        "block_size": 32, "num_blocks": 64, "max_batch_tokens": 512, "max_memory": 0.5, "max_running_requests": 7,
        "enable_prefix_caching": False, "overlap": True, "batching_policy": "prefill_first",
    }  # fmt: skip


def test_the_fields_of_older_generation_configurations_are_options_of_the_engine() -> None:
    given = GenerationConfig(
        block_size=32, num_blocks=64, max_batch_tokens=512, max_memory=0.5, safety_margin=0.1, max_queue_size=9,
        scheduler="fifo", sliding_window=128, use_cuda_graph=False, profile=False,
    )  # fmt: skip
    assert options_of(given) == {
        "block_size": 32, "num_blocks": 64, "max_batch_tokens": 512, "max_memory": 0.5, "safety_margin": 0.1,
        "batching_policy": "fifo", "use_cuda_graph": "off",
    }  # fmt: skip
    assert resolve_settings(given).max_queue_size == 9


def test_a_default_of_transformers_class_is_no_choice_but_a_value_in_a_mapping_or_the_call_is_one() -> None:
    same = {"page_size": 256, "scheduler_type": "fifo", "allow_block_sharing": True}
    ours = {"block_size": 256, "batching_policy": "fifo", "enable_prefix_caching": True}
    assert options_of(None, Theirs(**same)) == {}  # type: ignore[arg-type]
    assert options_of(None, same) == ours
    assert options_of(None, None, **same) == ours


@pytest.mark.parametrize(
    ("configs", "knobs", "blocks"),
    [
        ((GenerationConfig(num_blocks=3),), {}, 3 * 32 // 16), ((None, Theirs(num_blocks=3)), {}, 3 * 256 // 16),
        ((None, Theirs(num_blocks=3, block_size=64)), {}, 3), ((None, {"num_blocks": 3, "page_size": 24}), {}, 3),
        ((GenerationConfig(num_blocks=3),), {"page_size": 8}, 3), ((None, None), {"num_blocks": 3}, 3),
        ((GenerationConfig(num_blocks=3), Theirs(num_blocks=5)), {}, 5 * 256 // 16),
        ((GenerationConfig(num_blocks=3), Theirs(page_size=64)), {}, 3),
    ],
)  # fmt: skip
def test_a_number_of_blocks_without_their_size_keeps_the_number_of_tokens(
    configs: tuple[Any, ...], knobs: dict[str, Any], blocks: int
) -> None:
    assert options_of(*configs, **knobs)["num_blocks"] == blocks


def test_keyword_arguments_win_over_the_new_configuration_and_that_over_the_generation_configuration() -> None:
    old = GenerationConfig(max_batch_tokens=1, max_memory=0.1, block_size=8, max_new_tokens=5)
    settings = resolve_settings(
        old, Theirs(max_batch_tokens=2, max_memory_percent=0.2), {"max_batch_tokens": 3, "max_model_len": 99}
    )
    assert settings.options == {
        **UNBOUNDED, "max_batch_tokens": 3, "max_memory": 0.2, "block_size": 8, "max_model_len": 99
    }  # fmt: skip
    assert settings.max_new_tokens == 5


def test_engine_options_and_sampling_parameters_of_chairlift_count_in_every_source() -> None:
    for configs, knobs in (
        ((GenerationConfig(max_model_len=99, presence_penalty=1.0),), {}),
        ((None, {"max_model_len": 99, "presence_penalty": 1.0}), {}),
        ((None, None), {"max_model_len": 99, "presence_penalty": 1.0, "max_chunk_tokens": None}),
    ):
        settings = resolve_settings(*configs, knobs=knobs)
        assert options_of(*configs, **knobs) == {"max_model_len": 99} | ({"max_chunk_tokens": None} if knobs else {})
        assert request_params(settings)[0].presence_penalty == 1.0


def test_a_configuration_inside_the_generation_configuration_counts_unless_another_is_given() -> None:
    with pytest.warns(FutureWarning):
        config = GenerationConfig(continuous_batching_config=Theirs(max_batch_tokens=64))
    assert options_of(config) == {"max_batch_tokens": 64}
    assert options_of(config, Theirs(max_batch_tokens=32)) == {"max_batch_tokens": 32}


def test_a_margin_selects_fifo_and_has_no_effect_with_prefill_first(caplog: pytest.LogCaptureFixture) -> None:
    assert options_of(None, Theirs(safety_margin=0.1)) == {"safety_margin": 0.1, "batching_policy": "fifo"}
    with caplog.at_level(logging.WARNING, "ContinuousBatchingLogger"):
        assert options_of(None, Theirs(safety_margin=0.1, scheduler_type="prefill_first")) == {
            "batching_policy": "prefill_first"
        }
    assert caplog.messages == ["safety_margin has no effect: the scheduler prefill_first has none"]


@pytest.mark.parametrize("name", ["scheduler", "scheduler_type"])
def test_an_unknown_scheduler_is_refused_with_the_two_names(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be 'fifo' or 'prefill_first', got 'mixed'") as caught:
        resolve_settings(knobs={name: "mixed"})
    assert caught.value.details == {"option": name}
    assert options_of(batching_policy="mixed") == {"batching_policy": "mixed"}


def test_fields_of_the_manager() -> None:
    settings = resolve_settings(
        {"max_new_tokens": 8, "max_length": 20, "num_return_sequences": 2, "eos_token_id": [3, 4]},
        Theirs(return_logprobs=True, seed=5, max_queue_size=6),
    )
    assert settings == ManagerSettings(
        options=UNBOUNDED, sampling={"temperature": 0.0}, eos_token_ids=(3, 4), max_new_tokens=8,  # type: ignore[typeddict-item]
        max_length=20, num_return_sequences=2, return_logprobs=True, seed=5, max_queue_size=6,
    )  # fmt: skip
    params, eos = request_params(settings)
    assert (params.max_tokens, params.logprobs, eos) == (8, 0, (3, 4))


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_field_without_effect_is_logged_once_with_its_reason(name: str, caplog: pytest.LogCaptureFixture) -> None:
    spec = BATCHING.get(name) or GENERATION[name]
    with caplog.at_level(logging.WARNING, "ContinuousBatchingLogger"):
        for _ in range(3):
            assert options_of({name: "another value"}) == {}
            assert all(options_of({name: value}) == {} for value in (spec.default, *spec.neutral))
    assert caplog.messages == [f"{name} has no effect: {spec.reason}"]


@pytest.mark.parametrize("name", [name for name, spec in GENERATION.items() if spec.effect is OptionEffect.REFUSED])
def test_a_field_that_would_change_the_output_is_refused_unless_it_is_neutral(name: str) -> None:
    for value in (None, *GENERATION[name].neutral):
        assert options_of({name: value}) == {}
    for configs, knobs in (({name: "x" * 99}, {}), (None, {name: "x" * 99})):
        with pytest.raises(ConfigError) as caught:
            resolve_settings(configs, None, knobs)
        assert str(caught.value) == f"{name}='{'x' * 59}... is not supported: {GENERATION[name].reason}"
    with pytest.raises(InvalidRequest, match=f"{name} is no parameter of a request: "):
        request_params(resolve_settings(), **{name: 1})


@pytest.mark.parametrize("name", SILENT)
def test_a_field_that_transformers_itself_does_not_read_is_ignored(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    assert options_of({name: 1}) == {}
    assert caplog.messages == []


def test_a_field_of_a_newer_transformers_is_logged_and_an_unknown_keyword_argument_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    newer = GenerationConfig(num_block=3, entirely_new=1)
    with caplog.at_level(logging.WARNING, "ContinuousBatchingLogger"):
        assert options_of(newer, {"page_sizes": 3}) == {}
    assert caplog.messages[:2] == [
        "num_block has no effect: it is not known here; did you mean 'num_blocks'?",
        "entirely_new has no effect: it is not known here",
    ]
    with pytest.raises(UnknownOption, match="unknown option 'num_block'; did you mean 'num_blocks'") as caught:
        resolve_settings(knobs={"num_block": 3})
    assert isinstance(caught.value, TypeError)
    for config in (3, "fifo"):
        with pytest.raises(ConfigError, match="generation_config must be a configuration or a mapping, got"):
            resolve_settings(config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"top_p": 3.0}, "top_p must be between 0 and 1, got 3.0"), ({"temperature": 9}, "temperature must be between"),
        ({"max_new_tokens": 0}, "max_new_tokens must be between 1"), ({"max_new_tokens": "5"}, "must be an integer"),
        ({"num_return_sequences": 0}, "num_return_sequences must be between 1"), ({"seed": "x"}, "seed must be"),
        ({"eos_token_id": "x"}, "eos_token_id must be an integer, got str"), ({"do_sample": 1}, "do_sample must be"),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused_at_the_start(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_settings({"do_sample": True, **values})
    assert caught.value.details["option"] == next(iter(values))


def test_it_samples_only_with_do_sample_or_a_temperature_in_the_call() -> None:
    config = GenerationConfig(do_sample=False, temperature=0.8, top_k=3)
    assert temperature_of(resolve_settings(config)) == 0
    assert temperature_of(resolve_settings(GenerationConfig(do_sample=True, temperature=0.8))) == 0.8
    assert temperature_of(resolve_settings(GenerationConfig(do_sample=True))) is None  # neutral
    assert temperature_of(resolve_settings(config, knobs={"temperature": 1})) == 1
    assert temperature_of(resolve_settings(config, knobs={"temperature": 0})) == 0
    assert temperature_of(resolve_settings(knobs={"temperature": 0.5, "do_sample": False})) == 0
    assert request_params(resolve_settings(config), do_sample=True)[0].top_k == 3


def test_each_request_may_sample_in_its_own_way() -> None:
    greedy = resolve_settings(GenerationConfig(temperature=0.8))
    sampled = resolve_settings(GenerationConfig(temperature=0.8, do_sample=True, top_p=0.5))
    assert temperature_of(greedy, do_sample=True) == 0.8 == temperature_of(sampled, do_sample=True)
    assert temperature_of(greedy, temperature=1) == 1.0 == temperature_of(sampled, temperature=1)
    assert temperature_of(greedy, temperature=0.3, do_sample=True) == 0.3
    assert temperature_of(sampled, temperature=0) == 0 == temperature_of(sampled, do_sample=False)
    assert temperature_of(sampled, temperature=0.7, do_sample=False) == 0 == temperature_of(greedy, top_k=5)
    params, _ = request_params(
        sampled, top_k=7, min_p=0.1, typical_p=0.9, repetition_penalty=1.2, no_repeat_ngram_size=2, seed=4,
        bad_words_ids=[[1, 2]], min_new_tokens=3, presence_penalty=1, logit_bias={5: 1.0}, top_p=None,
    )  # fmt: skip
    assert (params.top_k, params.min_p, params.typical_p, params.top_p) == (7, 0.1, 0.9, 0.5)
    assert (params.repetition_penalty, params.no_repeat_ngram_size, params.seed) == (1.2, 2, 4)
    assert (params.bad_words_ids, params.min_tokens, params.presence_penalty) == (((1, 2),), 3, 1.0)
    assert params.logit_bias == {5: 1.0}


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"temperature": -1}, "temperature must be between 0 and 2"), ({"top_p": -3}, "top_p must be between 0 and 1"),
        ({"temperture": 1}, "no parameter of a request; did you mean 'temperature'"),
        ({"page_size": 8}, "page_size is no parameter of a request: it is one of the manager"),
        ({"do_sample": "yes"}, "do_sample must be true or false"), ({"max_new_tokens": 0}, "between 1 and"),
        ({"eos_token_id": [1.5]}, "eos_token_id must be an integer, got float"), ({"xyz": 1}, "request$"),
    ],
)  # fmt: skip
def test_an_impossible_request_is_invalid(request_fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        request_params(resolve_settings(), **request_fields)


def test_the_length_of_an_output_is_the_requests_or_the_managers_or_what_max_length_leaves() -> None:
    for settings, given, prompt, expected in (
        (resolve_settings(), None, 5, None), (resolve_settings({"max_new_tokens": 3}), None, 5, 3),
        (resolve_settings({"max_new_tokens": 3}), 9, 5, 9), (resolve_settings({"max_length": 8}), None, 5, 3),
        (resolve_settings({"max_length": 8}), 9, 5, 9), (resolve_settings({"max_length": 8}), 9, 50, 9),
        (resolve_settings({"max_length": 8, "max_new_tokens": 20}), None, 5, 20),
    ):  # fmt: skip
        params, _ = request_params(settings, num_prompt_tokens=prompt, max_new_tokens=given)
        assert params.max_tokens == expected
    with pytest.raises(InvalidRequest, match="max_length is 8, the prompt has 8 tokens: set max_new_tokens"):
        request_params(resolve_settings({"max_length": 8}), num_prompt_tokens=8)


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        (None, (9,)), (3, (3,)), ([3, 4], (3, 4)), (-1, ()), ([], ()),
        ([None], ()), ([3, None, -1], (3,)), (torch.tensor([3]), (3,)),
        (torch.tensor(3), (3,)), (np.array([3, 4]), (3, 4)), ([np.int64(5)], (5,)), ({6}, (6,)),
    ],
)  # fmt: skip
def test_the_tokens_that_end_an_output(given: Any, ids: tuple[int, ...]) -> None:
    assert request_params(resolve_settings({"eos_token_id": 9}), eos_token_id=given)[1] == ids
    assert resolve_settings({"eos_token_id": given}).eos_token_ids == (None if given is None else ids)


def test_a_trace_needs_a_path(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ContinuousBatchingLogger"):
        assert options_of(profile=True) == {} and options_of(profile="t.json") == {"profile": "t.json"}
    assert caplog.messages == ["profile has no effect: True names no file for the trace of the steps; pass its path"]


@pytest.mark.parametrize(
    ("value", "mode"), [(True, "auto"), (False, "off"), ((True, False), "auto"), ((False, False), "off")]
)
def test_flags_about_graphs_become_a_mode(value: Any, mode: str) -> None:
    assert options_of(None, {"use_cuda_graph": value}) == {"use_cuda_graph": mode}
