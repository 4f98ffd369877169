"""vLLM's constructor options: aliases, options without effect, refusals with a reason, unknown names."""

import logging
from typing import Any

import pytest
import torch

from chairlift import LLM, AsyncLLM
from chairlift.core.errors import ConfigError, UnknownOption
from chairlift.core.foreign_options import OptionEffect
from chairlift.llm.build import validate_options
from chairlift.llm.options import Options
from chairlift.llm.vllm_compat.vllm_options import VLLM_OPTIONS, resolve_options
from support_shares import for_each

ALIASES = {name: option.setting for name, option in VLLM_OPTIONS.items() if option.setting}
WITHOUT_EFFECT = [name for name, option in VLLM_OPTIONS.items() if option.effect is OptionEffect.NONE]
REFUSED = [name for name in VLLM_OPTIONS if name not in ALIASES and name not in WITHOUT_EFFECT]


def test_each_option_has_one_meaning_and_a_reason_where_it_needs_one() -> None:
    assert set(ALIASES.values()) <= set(Options.__annotations__)
    assert not set(VLLM_OPTIONS) & set(Options.__annotations__)
    assert all(VLLM_OPTIONS[name].reason for name in (*WITHOUT_EFFECT, *REFUSED))


@for_each("name", ALIASES)
def test_an_alias_sets_our_option(name: str) -> None:
    assert resolve_options(None, {name: 7}) == {ALIASES[name]: 7}


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_an_option_without_effect_is_accepted_and_the_log_says_why(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    with caplog.at_level(logging.INFO, logger="chairlift"):
        assert resolve_options("m", {name: "anything"}) == {}
    assert f"{name} has no effect: {VLLM_OPTIONS[name].reason}" in caplog.messages


@pytest.mark.share(16)
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_option_names_the_reason_and_takes_values_that_change_nothing(name: str) -> None:
    option = VLLM_OPTIONS[name]
    with pytest.raises(ConfigError) as caught:
        resolve_options("m", {name: "another value"})
    assert str(caught.value) == f"{name}='another value' is not supported: {option.reason}"
    assert caught.value.details == {"option": name}
    for value in (None, *option.neutral):
        assert resolve_options("m", {name: value}) == {}


def test_the_tokenizer_of_the_model_itself_may_be_named() -> None:
    options = {"tokenizer": "owner/name", "tokenizer_revision": "v1", "revision": "v1"}
    assert resolve_options("owner/name", options) == {"revision": "v1"}
    assert resolve_options("owner/name", {"tokenizer": "owner/other"}) == {"tokenizer": "owner/other"}
    with pytest.raises(ConfigError, match=r"the tokenizer is the model folder"):
        resolve_options("owner/name", {"tokenizer_revision": "v2"})


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_options("m", {"additional_config": {"model": "x" * 500}})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("options", "resolved"),
    [
        ({"dtype": torch.bfloat16}, {"dtype": "bfloat16"}), ({"device": torch.device("cpu")}, {"device": "cpu"}),
        ({"scheduling_policy": "fcfs"}, {"scheduling_policy": "fifo"}), ({"seed": None}, {"seed": None}),
        ({"quantization": None, "enable_prefix_caching": None, "max_num_seqs": None}, {}),
    ],
)  # fmt: skip
def test_vllms_values_become_ours(options: dict[str, Any], resolved: dict[str, Any]) -> None:
    assert resolve_options(None, options) == resolved
    validate_options(resolve_options(None, options))


def test_an_option_under_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs and max_running_requests are the same option; pass one"):
        resolve_options(None, {"max_running_requests": 3, "max_num_seqs": 4})


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_an_unknown_option_is_a_type_error_with_a_suggestion(kind: Any) -> None:
    with pytest.raises(TypeError, match="unknown option 'max_num_seq'; did you mean 'max_num_seqs'") as caught:
        kind(max_num_seq=3)
    assert isinstance(caught.value, UnknownOption)
    with pytest.raises(UnknownOption, match="unknown option 'zzz'; available are dtype, device"):
        kind(zzz=3)


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_vllms_names_reach_the_engine(kind: Any) -> None:
    llm = kind(
        "chairlift:random", dtype="float32", max_model_len=64, seed=1, gpu_memory_utilization=0.01,
        tensor_parallel_size=1, enforce_eager=True, trust_remote_code=False, enable_prefix_caching=True,
        max_num_seqs=3, max_num_batched_tokens=128, tokenizer="chairlift:random", num_gpu_blocks_override=40,
        block_size=8,
    )  # fmt: skip
    info = llm._service.client.info
    assert (llm._service.client.limits.max_model_len, info.num_blocks, info.block_size) == (64, 40, 8)
    llm.close()


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
@pytest.mark.parametrize("value", ["auto", "AUTO", -1])
def test_the_length_auto_is_as_many_tokens_as_the_cache_holds(kind: Any, value: Any) -> None:
    for num_blocks, length in ((5, 41), (4000, 1024)):
        llm = kind("chairlift:random", dtype="float32", max_model_len=value, num_blocks=num_blocks, block_size=8)
        assert llm._service.client.limits.max_model_len == length
        assert llm.startup_report["max_model_len"].startswith(f"{length} (")
        llm.close()


@pytest.mark.parametrize("value", ["16x", "automatic", 0, 1, -2, 1.5])
def test_another_length_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM("chairlift:random", max_model_len=value)


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({"enforce_eager": True}, "off"), ({"enforce_eager": False}, "auto"), ({"use_cuda_graph": True}, "on"),
        ({"use_cuda_graph": False}, "off"), ({"use_cuda_graph": "auto"}, "auto"),
    ],
)  # fmt: skip
def test_flags_about_graphs_become_modes(given: dict[str, Any], mode: str) -> None:
    assert resolve_options(None, given) == {"use_cuda_graph": mode}
