"""check_against_eager: models that the paged cache would compute otherwise are refused, in every dtype."""

from typing import Any

import pytest
import torch
from torch import nn

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.architectures.transformers import load_module
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.registry import make_backend
from chairlift.model.runner.runner_config import RunnerConfig
from chairlift.model.transformers import attention, self_check
from chairlift.model.transformers.self_check import check_against_eager
from support_bridged_models import bridged_model

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
OPTIONS = RunnerConfig(num_blocks=100)


class AddPrevious(nn.Module):
    """Adds a share of the token before, as a convolution over tokens does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.inner(states)
        return mixed + nn.functional.pad(mixed, (0, 0, 1, 0))[:, :-1]


class AddMean(nn.Module):
    """Adds the mean of all tokens of the pass, later ones too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.inner(states)
        return mixed + mixed.mean(dim=1, keepdim=True)


class Counting(nn.Module):
    """Keeps a state between two passes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        mixed: torch.Tensor = self.inner(states)
        return mixed.roll(self.calls, -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mixing", [AddPrevious, AddMean, Counting])
def test_a_layer_that_needs_more_than_its_token_is_refused(mixing: Any, dtype: torch.dtype) -> None:
    model = bridged_model("olmo2", dtype=dtype)
    model.model.layers[1].mlp = mixing(model.model.layers[1].mlp)
    with pytest.raises(UnsupportedArchitecture, match="hidden states are not those of transformers") as caught:
        load_module(model, OPTIONS)
    assert caught.value.message.startswith("Olmo2ForCausalLM cannot run on a paged KV cache")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["phi3", "mixtral", "gpt_oss"])
def test_a_model_that_fits_passes_in_every_dtype(kind: str, dtype: torch.dtype) -> None:
    assert load_module(bridged_model(kind, dtype=dtype), OPTIONS).report[0] == (
        "implementation", "transformers on the paged attention",
    )  # fmt: skip


def wrong_scale(spec: attention.AttentionSpec) -> attention.AttentionSpec:
    return attention.AttentionSpec(spec.group, 2 * spec.scale, spec.window, spec.softcap, spec.sinks)


def no_sinks(spec: attention.AttentionSpec) -> attention.AttentionSpec:
    return attention.AttentionSpec(spec.group, spec.scale, spec.window, spec.softcap, None)


def window_of_two(spec: attention.AttentionSpec) -> attention.AttentionSpec:
    return attention.AttentionSpec(spec.group, spec.scale, 2, spec.softcap, spec.sinks)


@pytest.mark.parametrize("change", [wrong_scale, no_sinks, window_of_two])
def test_a_parameter_of_attention_that_is_wrong_is_found(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(ReferenceAttention):
        def attend(self, query: Any, kv: Any, batch: Any, spec: Any, plan: Any, out: Any) -> None:
            super().attend(query, kv, batch, change(spec), plan, out)

    made = load_module(bridged_model("gpt_oss"), OPTIONS)
    causal_lm: Any = made.model
    check_against_eager(causal_lm, _whole(causal_lm), ReferenceAttention(), 16)
    attention.select_attention(causal_lm.base, attention.IMPLEMENTATION)
    with pytest.raises(UnsupportedArchitecture, match=r"relative difference 0\.|relative difference [1-9]"):
        check_against_eager(causal_lm, _whole(causal_lm), Wrong(), 16)


def _whole(causal_lm: Any) -> nn.Module:
    base: nn.Module = causal_lm.base
    return base


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_every_block_size_holds_the_sequences(block_size: int) -> None:
    causal_lm: Any = load_module(bridged_model("gemma2"), OPTIONS).model
    check_against_eager(causal_lm, causal_lm.base, make_backend("reference"), block_size)


def test_a_state_that_is_not_a_number_differs() -> None:
    theirs = torch.ones(2, 4)
    ours = torch.stack([torch.full((4,), torch.nan), torch.ones(4)])
    assert self_check._relative(ours, theirs).tolist() == [float("inf"), 0.0]
    assert self_check._relative(torch.ones(1, 4), torch.full((1, 4), torch.inf)).tolist() == [0.0]
