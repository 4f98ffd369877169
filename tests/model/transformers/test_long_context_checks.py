"""check_far_tokens, check_cache_windows: what layers do with tokens far in a sequence, which short ones do not show."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from chairlift import LLM, SamplingParams
from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.attention.base import AttentionSpec
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.transformers.attention import (
    FULL,
    MEASURING,
    OTHER,
    LayerCall,
    PagedAttention,
    register,
    select_attention,
)
from chairlift.model.transformers.base_model_runner import base_states
from chairlift.model.transformers.causal_lm import base_of
from chairlift.model.transformers.long_context_checks import (
    check_block_sparse,
    check_cache_reads,
    check_cache_windows,
    check_far_tokens,
    kept_windows,
)
from chairlift.model.transformers.model_loading_and_layer_measurement import load_module
from support_bridged_models import bridged_model, greedy, model_of
from support_models import COMMON
from support_shares import for_each

PROMPTS = [[(7 * i + 3 * j) % 290 + 10 for i in range(length)] for j, length in enumerate((1, 5, 17, 33, 50))]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def measured(model: Any) -> PagedAttention:
    """Return the attention of a model that is ready for check_far_tokens."""
    register()
    paged = PagedAttention()
    paged.attach(model)
    select_attention(model, MEASURING)
    with torch.inference_mode():
        base_states(base_of(model), torch.zeros(2, dtype=torch.int64), torch.arange(2), use_cache=False)
    return paged


def llama4(**changes: Any) -> transformers.Llama4TextConfig:
    """Return a config without chunked layers, whose temperature of queries changes every 16 tokens."""
    fields = {
        **COMMON, "head_dim": 16, "num_hidden_layers": 4, "layer_types": ["full_attention"] * 4, "floor_scale": 16,
        "intermediate_size_mlp": 96, "num_local_experts": 2, "attn_scale": 2.0,
    }  # fmt: skip
    return transformers.Llama4TextConfig(**{**fields, **changes})


@pytest.mark.share(3)
@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "phi3", "gpt_oss", "deepseek_v3", "opt"])
@pytest.mark.parametrize("length", [1, 2, 100, 1024])
def test_layers_that_use_their_positions_pass(kind: str, length: int) -> None:
    model = bridged_model(kind)
    check_far_tokens(base_of(model), measured(model), length)


@pytest.mark.parametrize(("length", "passes"), [(14, True), (16, False), (1024, False)])
def test_a_temperature_by_the_length_of_the_cache_is_found_from_its_threshold_on(length: int, passes: bool) -> None:
    model = model_of(llama4())
    paged = measured(model)
    if passes:
        check_far_tokens(base_of(model), paged, length)
        return
    with pytest.raises(UnsupportedArchitecture, match="take positions from the length of transformers' cache"):
        check_far_tokens(base_of(model), paged, length)


def test_without_weights_a_layer_that_reads_the_length_of_the_cache_is_found() -> None:
    for config, passes in ((llama4(), False), (llama4(attn_temperature_tuning=False), True)):
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        paged = PagedAttention()
        paged.calls = {layer: [] for layer in range(4)}
        paged.attach(model)
        register()
        select_attention(model, MEASURING)
        if passes:
            check_cache_reads(base_of(model), paged)
            continue
        with pytest.raises(UnsupportedArchitecture, match="length of transformers' cache"):
            check_cache_reads(base_of(model), paged)


class FromCache(nn.Module):
    """A projection whose layer adds something in every pass but the first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.passes = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        projected: Tensor = self.inner(x)
        return projected + (self.passes > 2)


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
def test_queries_keys_and_values_are_compared(name: str) -> None:
    model = bridged_model("smollm3")
    attention = model.model.layers[1].self_attn
    setattr(attention, name, FromCache(getattr(attention, name)))
    paged = measured(model)
    with pytest.raises(UnsupportedArchitecture, match="length of transformers' cache"):
        check_far_tokens(base_of(model), paged, 64)


@pytest.mark.full
@pytest.mark.parametrize("max_model_len", [None, 12])
def test_llama_4_makes_the_tokens_of_generate_beyond_its_threshold(max_model_len: int | None, tmp_path: Any) -> None:
    model = model_of(llama4())
    model.float().save_pretrained(tmp_path)
    model.double()
    prompts = PROMPTS if max_model_len is None else [[7, 8]]
    params = GREEDY if max_model_len is None else SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    with LLM(tmp_path, dtype="float64", num_blocks=200, max_chunk_tokens=7, max_model_len=max_model_len) as llm:
        made = llm.generate(prompts, params, use_tqdm=False)
        assert ("paged attention" in llm.startup_report["implementation"]) == (max_model_len is not None)
    expected = [greedy(model, prompt, params.max_tokens or 0) for prompt in prompts]
    assert [output.outputs[0].token_ids for output in made] == expected
    assert max_model_len is not None or len({token for tokens in expected for token in tokens}) > 8


def moshi(window: int, positions: int = 1024) -> Any:
    config = transformers.MoshiConfig(
        **COMMON | {"max_position_embeddings": positions}, sliding_window=window, ffn_dim=96
    )
    return model_of(config)


def test_a_cache_that_drops_tokens_which_the_mask_sees_is_refused() -> None:
    sentence = (
        "MoshiForCausalLM cannot run on a paged KV cache: transformers' cache keeps the last 20 tokens of layer 0, but "
        "its mask sees all tokens, so its generate() and its forward pass make different tokens; set max_model_len to "
        "at most 20"
    )
    with pytest.raises(UnsupportedArchitecture) as raised:
        load_module(moshi(20), RunnerConfig())
    assert raised.value.message == sentence
    load_module(moshi(20), RunnerConfig(max_model_len=20))


@pytest.mark.full
def test_moshi_makes_the_tokens_of_generate_with_the_window_of_its_length(tmp_path: Any) -> None:
    model = moshi(1024)
    model.float().save_pretrained(tmp_path)
    model.double()
    with LLM(tmp_path, dtype="float64", num_blocks=200, max_chunk_tokens=7) as llm:
        made = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    expected = [greedy(model, prompt, 16) for prompt in PROMPTS]
    assert [output.outputs[0].token_ids for output in made] == expected
    assert len({token for tokens in expected for token in tokens}) > 8


def config(*kinds: str) -> Any:
    return transformers.Cohere2Config(
        **COMMON | {"num_hidden_layers": len(kinds)}, layer_types=list(kinds), sliding_window=20
    )


def calls(*windows: int | None) -> dict[int, list[LayerCall]]:
    return {layer: [LayerCall(4, 2, 16, 16, AttentionSpec(0, 0.25, window))] for layer, window in enumerate(windows)}


def test_the_windows_of_transformers_cache_are_those_of_the_kinds_of_layers() -> None:
    assert kept_windows(config("sliding_attention", "full_attention")) == [20, None]
    assert kept_windows(llama4()) == [None] * 4


@for_each(
    ("windows", "length", "sees"),
    [
        ((20, None), 1024, None), ((None, None), 20, None), ((None, None), 21, "all tokens"), ((20, 9), 1024, None),
        ((30, None), 1024, "30 tokens"), ((OTHER, None), 1024, "others"),
    ],
)  # fmt: skip
def test_a_mask_must_not_see_more_than_the_cache_keeps(
    windows: tuple[int | None, ...], length: int, sees: str | None
) -> None:
    assert FULL not in windows
    content = config("sliding_attention", "full_attention")
    if sees is None:
        check_cache_windows(content, calls(*windows), length)
        return
    with pytest.raises(UnsupportedArchitecture, match=f"keeps the last 20 tokens of layer 0, but its mask sees {sees}"):
        check_cache_windows(content, calls(*windows), length)


def test_a_layer_without_calls_and_a_chunked_one_are_not_compared() -> None:
    check_cache_windows(config("sliding_attention"), {}, 1024)
    chunked = llama4(layer_types=["chunked_attention"] * 4, attention_chunk_size=16)
    check_cache_windows(chunked, calls(OTHER, OTHER, OTHER, OTHER), 1024)


def big_bird(**changes: Any) -> Any:
    config = transformers.BigBirdConfig(
        vocab_size=304, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=1024, is_decoder=True, block_size=4, num_random_blocks=1, **changes,
    )  # fmt: skip
    return model_of(config, dtype=torch.float32, scale=0.6)


@pytest.mark.full
def test_attention_to_blocks_is_refused_beyond_the_length_that_has_full_attention() -> None:
    sentence = "attend to blocks of tokens in passes over more than 28 tokens .*; set max_model_len to at most 28"
    with pytest.raises(UnsupportedArchitecture, match=sentence):
        load_module(big_bird(), RunnerConfig())
    load_module(big_bird(), RunnerConfig(max_model_len=28))
    load_module(big_bird(attention_type="original_full"), RunnerConfig())
    check_block_sparse(base_of(bridged_model("olmo2")), None, 1024)
