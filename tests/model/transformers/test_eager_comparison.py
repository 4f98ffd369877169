"""check_against_eager: equal models pass in every dtype, wrong ones and numbers that are none do not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.attention.base import AttentionSpec
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.transformers.attention import IMPLEMENTATION, select_attention
from chairlift.model.transformers.eager_comparison import check_against_eager, eager_states
from chairlift.model.transformers.model_loading_and_layer_measurement import load_module
from chairlift.model.transformers.module_kernels import ModuleKernels
from support_bridged_models import bridged_model


def checked(kind: str, dtype: torch.dtype, block_size: int = 16, backend: Any = None) -> None:
    model = bridged_model(kind, dtype=dtype)
    made: Any = load_module(model, RunnerConfig()).model
    check_against_eager(made, eager_states(model), backend or TorchAttention(), block_size)


@pytest.mark.share(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gemma2", "deepseek_v3"])
def test_models_that_compute_the_same_pass(kind: str, dtype: torch.dtype) -> None:
    checked(kind, dtype)


@pytest.mark.full
@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_any_block_size_passes(block_size: int) -> None:
    checked("phi3", torch.float32, block_size)
    checked("phi3", torch.float32, block_size, ReferenceAttention())


class Wrong(TorchAttention):
    """An attention with an error."""

    def __init__(self, error: float) -> None:
        super().__init__()
        self.error = error

    def attend(self, query: Tensor, kv: Any, batch: Any, spec: Any, plan: Any, out: Tensor) -> None:
        super().attend(query, kv, batch, spec, plan, out)
        out += self.error


@pytest.mark.share(1)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 0.01), (torch.float32, 0.1), (torch.bfloat16, 2.0)])
def test_a_wrong_attention_is_found(dtype: torch.dtype, error: float) -> None:
    with pytest.raises(UnsupportedArchitecture, match="its hidden states are not those of transformers"):
        checked("olmo2", dtype, backend=Wrong(error))
    with pytest.raises(UnsupportedArchitecture, match="relative difference inf"):
        checked("olmo2", dtype, backend=Wrong(torch.nan))


def test_an_error_in_one_sequence_alone_is_found() -> None:
    class Second(Wrong):
        def attend(self, query: Tensor, kv: Any, batch: Any, spec: Any, plan: Any, out: Tensor) -> None:
            TorchAttention.attend(self, query, kv, batch, spec, plan, out)
            out[batch.cu_q_list[1] :] += self.error

    with pytest.raises(UnsupportedArchitecture):
        checked("olmo2", torch.float32, backend=Second(0.1))


def test_the_module_is_left_with_eager_attention() -> None:
    model = bridged_model("olmo2", dtype=torch.float32)
    select_attention(model, IMPLEMENTATION)
    made = eager_states(model)
    assert model.config._attn_implementation == "eager"
    with torch.inference_mode():
        expected = model.model(made.ids[1][None]).last_hidden_state[0]
    assert len(made.ids[1]) == 10 and torch.equal(made.states[1], expected)


def test_a_module_that_is_replaced_by_another_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace_in(self: ModuleKernels, model: Any, run: Any) -> None:
        weight = model.model.layers[1].mlp.down_proj.weight
        weight.copy_(weight.roll(1, 0))

    load_module(bridged_model("olmo2", dtype=torch.float32), RunnerConfig())
    monkeypatch.setattr(ModuleKernels, "replace_in", replace_in)
    with pytest.raises(UnsupportedArchitecture, match="hidden states are not those of transformers"):
        load_module(bridged_model("olmo2", dtype=torch.float32).requires_grad_(False), RunnerConfig())


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


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mixing", [AddPrevious, AddMean, Counting])
def test_a_layer_that_needs_more_than_its_token_is_refused(mixing: Any, dtype: torch.dtype) -> None:
    model = bridged_model("olmo2", dtype=dtype)
    model.model.layers[1].mlp = mixing(model.model.layers[1].mlp)
    with pytest.raises(UnsupportedArchitecture, match="hidden states are not those of transformers") as caught:
        load_module(model, RunnerConfig())
    assert caught.value.message.startswith("Olmo2ForCausalLM cannot run on a paged KV cache")


def wrong_scale(spec: AttentionSpec) -> AttentionSpec:
    return AttentionSpec(spec.group, 2 * spec.scale, spec.window, spec.softcap, spec.sinks)


def no_sinks(spec: AttentionSpec) -> AttentionSpec:
    return AttentionSpec(spec.group, spec.scale, spec.window, spec.softcap, None)


def window_of_two(spec: AttentionSpec) -> AttentionSpec:
    return AttentionSpec(spec.group, spec.scale, 2, spec.softcap, spec.sinks)


@pytest.mark.full
@pytest.mark.parametrize("change", [wrong_scale, no_sinks, window_of_two])
def test_a_parameter_of_attention_that_is_wrong_is_found(change: Any) -> None:
    class Changed(ReferenceAttention):
        def attend(self, query: Tensor, kv: Any, batch: Any, spec: Any, plan: Any, out: Tensor) -> None:
            super().attend(query, kv, batch, change(spec), plan, out)

    checked("gpt_oss", torch.float64, backend=ReferenceAttention())
    with pytest.raises(UnsupportedArchitecture, match="relative difference"):
        checked("gpt_oss", torch.float64, backend=Changed())
