"""parse_speculative_config: vLLM's keys and methods, defaults, and sentences for what does not exist."""

from pathlib import Path
from typing import Any

import pytest

from chairlift import LLM, SamplingParams
from chairlift.core.errors import ConfigError
from chairlift.engine.config import SpeculationConfig
from chairlift.engine.drafters.registry import METHODS
from chairlift.llm.build import validate_options
from chairlift.llm.speculative_config import parse_speculative_config
from chairlift.llm.vllm_compat.vllm_options import resolve_options

REPORT_NAME = "speculative decoding"


@pytest.mark.parametrize(
    ("value", "config"),
    [
        (None, SpeculationConfig(method="auto")), ({}, SpeculationConfig(method="auto")),
        ({"method": None}, SpeculationConfig(method="auto")), ({"method": "none"}, SpeculationConfig()),
        ({"num_speculative_tokens": 3}, SpeculationConfig(method="auto", num_speculative_tokens=3)),
        ({"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
         SpeculationConfig(method="ngram", prompt_lookup_min=2, prompt_lookup_max=4)),
        ({"method": "ngram", "prompt_lookup_max": 2},
         SpeculationConfig(method="ngram", prompt_lookup_min=1, prompt_lookup_max=2)),
        ({"method": "ngram", "prompt_lookup_min": 20},
         SpeculationConfig(method="ngram", prompt_lookup_min=20, prompt_lookup_max=20)),
        ({"model": "small"}, SpeculationConfig(method="draft_model", model="small")),
        ({"method": "draft_model", "model": "small"}, SpeculationConfig(method="draft_model", model="small")),
    ],
)  # fmt: skip
def test_keys_become_settings(value: dict[str, Any] | None, config: SpeculationConfig) -> None:
    assert parse_speculative_config(value) == config


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"method": "eagle3"}, r"method 'eagle3', and draft heads are not supported; available are auto, ngram"),
        ({"method": "deepseek_mtp"}, r"draft heads are not supported; .* 'auto' needs no second model"),
        ({"method": "ngrams"}, r"the unknown method 'ngrams'; available are auto, ngram, suffix, prediction,"),
        ({"method": ["ngram"]}, r"the unknown method"),
        ({"method": "draft_model"}, r"without a model; add the key 'model'"),
        ({"method": "ngram", "model": "small"}, r"a model, which method 'ngram' does not use"),
        ({"model": 3}, r"the model 3; it must be the folder or the hub id"),
        ({"num_speculative_token": 3}, r"unknown key 'num_speculative_token'; did you mean 'num_speculative_tokens'"),
        ({"x": 3}, r"the unknown key 'x'; available are method, num_speculative_tokens"),
        ({"disable_by_batch_size": 3}, r"'disable_by_batch_size', which is not supported: .*; leave it out"),
        ({"num_speculative_tokens": 0}, r"num_speculative_tokens 0; it must be an integer of at least 1"),
        ({"num_speculative_tokens": True}, r"num_speculative_tokens True; it must be an integer"),
        ({"prompt_lookup_max": "4"}, r"prompt_lookup_max '4'; it must be an integer"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, r"prompt_lookup_min must be at most prompt_lookup_max"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_an_error_that_names_what_does(value: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate_options({"speculative_config": value})
    assert caught.value.details == {"option": "speculative_config"}


def test_methods_are_names_that_the_option_accepts() -> None:
    for method in METHODS:
        value = {"method": method} | ({"model": "small"} if method == "draft_model" else {})
        assert validate_options({"speculative_config": value}).speculation.method == method


def test_the_default_of_an_llm_is_auto_and_vllms_option_is_ours() -> None:
    assert validate_options({}).speculation.method == "auto"
    options = resolve_options("m", {"speculative_config": {"method": "none"}})
    assert validate_options(options).speculation.method == "none"
    assert validate_options(resolve_options("m", {"speculative_config": None})).speculation.method == "auto"


def test_the_startup_report_says_that_it_is_off(tmp_path: Path) -> None:
    with LLM("chairlift:random", speculative_config={"method": "none"}, num_blocks=8) as llm:
        assert llm.startup_report[REPORT_NAME] == "off: the method is none"
        assert llm.generate([[1, 2]], SamplingParams(max_tokens=2))[0].outputs[0].token_ids


def test_the_startup_report_says_why_the_runner_refuses_drafts(caplog: pytest.LogCaptureFixture) -> None:
    for method, is_logged in (("auto", False), ("ngram", True)):
        caplog.clear()
        options: dict[str, Any] = {"speculative_config": {"method": method}, "kernels": "torch", "dtype": "bfloat16"}
        with LLM("chairlift:random", num_blocks=8, **options) as llm:
            line = llm.startup_report[REPORT_NAME]
        assert line.startswith("off: ") and "batch" in line
        warning = f"speculative decoding by method ngram is {line}"
        assert (warning in caplog.messages) == is_logged
