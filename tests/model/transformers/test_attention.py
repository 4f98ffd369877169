"""PagedAttention: windows of masks, what a measuring pass records, places of layers, and calls by strangers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma2Config
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_overlay,
    sliding_window_bidirectional_overlay,
    sliding_window_causal_mask_function,
)

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.attention.base import AttentionSpec
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.transformers.attention import (
    ATTRIBUTE,
    FULL,
    LATER,
    MEASURING,
    OTHER,
    LayerCall,
    PagedAttention,
    measuring_attention,
    measuring_mask,
    paged_attention,
    register,
    select_attention,
    window_of,
)
from chairlift.model.transformers.base_model_runner import base_states
from chairlift.model.transformers.unsupported_layers import is_not_causal
from support_batches import Row, make_batch
from support_bridged_models import bridged_model
from support_shares import for_each


def chunked(size: int) -> Callable[..., Tensor]:
    mask: Callable[..., Tensor] = and_masks(
        chunked_overlay(size, torch.zeros(1, dtype=torch.int64)), causal_mask_function
    )
    return mask


@for_each(
    ("mask", "code"),
    [
        (causal_mask_function, FULL),
        (sliding_window_causal_mask_function(1), 1),
        (sliding_window_causal_mask_function(20), 20),
        (sliding_window_causal_mask_function(4096), 4096),
        (chunked(16), OTHER),
        (chunked(8192), OTHER),
        (bidirectional_mask_function, LATER),
        (sliding_window_bidirectional_overlay(20), LATER),
        (lambda batch, head, query, key: key < query, OTHER),
        (lambda batch, head, query, key: [][query], OTHER),
    ],
)
def test_the_window_of_a_mask_is_what_a_far_query_sees(mask: Callable[..., Tensor], code: int) -> None:
    assert window_of(mask) == code
    assert measuring_mask(2, 3, 5, mask).tolist() == [[[[code] * 5] * 3]] * 2


class Layer(nn.Module):
    """A module as transformers calls its attention with."""

    def __init__(self, layer: int, state: PagedAttention | None = None) -> None:
        super().__init__()
        self.layer_idx, self.scaling = layer, 0.3
        if state is not None:
            setattr(self, ATTRIBUTE, state)


def heads(count: int, width: int, tokens: int = 2) -> Tensor:
    return torch.randn(1, count, tokens, width)


def test_a_measuring_pass_records_shapes_and_options_and_returns_zeros() -> None:
    state, sinks = PagedAttention(), torch.randn(4)
    mask = measuring_mask(1, 2, 2, sliding_window_causal_mask_function(7))
    query, key, value = heads(4, 24), heads(2, 24), heads(2, 16)
    options: dict[str, Any] = {"scaling": 0.5, "softcap": 50.0, "s_aux": sinks, "sliding_window": 99, "dropout": 0.0}
    out, weights = measuring_attention(Layer(3, state), query, key, value, mask, **options)
    assert out.shape == (1, 2, 4, 16) and not out.any() and weights is None
    (call,) = state.calls[3]
    assert (call.num_heads, call.num_kv_heads, call.head_dim, call.value_dim) == (4, 2, 24, 16)
    assert (call.spec.scale, call.spec.window, call.spec.softcap) == (0.5, 7, 50.0) and call.spec.sinks is not None
    measuring_attention(Layer(4, state), query, key, value, None, sliding_window=99)
    assert (state.calls[4][0].spec.scale, state.calls[4][0].spec.window) == (0.3, 99)


def call(heads: int = 2, width: int = 16, value: int = 16, window: int | None = None) -> LayerCall:
    return LayerCall(4, heads, width, value, AttentionSpec(0, 0.25, window))


def assigned(*calls: LayerCall, layers: int | None = None) -> PagedAttention:
    state = PagedAttention()
    state.calls = {layer: [each] for layer, each in enumerate(calls)}
    state.assign_places(len(calls) if layers is None else layers)
    return state


def test_layers_get_their_groups_by_window_and_the_width_of_the_widest_head() -> None:
    state = assigned(call(window=20), call(), call(window=20), call(window=20))
    assert state.windows == (20, None, 20, 20) and state.groups.windows == (20, 20, 20, None)
    assert (assigned(call(width=24, value=16)).head_dim, assigned(call(width=8, value=16)).head_dim) == (24, 16)
    assert assigned(call(heads=1)).num_kv_heads == 1


@for_each(
    ("calls", "layers", "reason"),
    [
        ((call(), call(heads=1)), 2, "different numbers or widths"),
        ((call(), call(width=32)), 2, "different numbers or widths"),
        ((call(),), 3, "2 of its 3 layers do not use"),
        ((call(), call(), call()), 2, "3 layers have attention, but config.json has 2 layers"),
        ((call(window=OTHER),), 1, "neither causal over all tokens nor a sliding window"),
        ((call(), call(window=LATER)), 2, "attend to later tokens"),
    ],
)
def test_layers_that_pages_cannot_hold_are_refused(calls: tuple[LayerCall, ...], layers: int, reason: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=reason) as raised:
        assigned(*calls, layers=layers)
    assert is_not_causal(raised.value) == (reason == "attend to later tokens")


def test_a_layer_that_attends_twice_is_refused() -> None:
    state = PagedAttention()
    state.calls = {0: [call(), call()]}
    with pytest.raises(UnsupportedArchitecture, match="several times"):
        state.assign_places(1)


def test_a_call_outside_a_step_or_by_another_model_is_an_error() -> None:
    query, key = heads(4, 16), heads(2, 16)
    with pytest.raises(RuntimeError, match="Layer does not belong to a model that Chairlift loaded"):
        paged_attention(Layer(0), query, key, key, None)
    state = assigned(call())
    with pytest.raises(RuntimeError, match="run it through Chairlift"):
        paged_attention(Layer(0, state), query, key, key, None)


def test_the_attention_of_every_module_is_selected_and_registered() -> None:
    from transformers import AttentionInterface, AutoModelForCausalLM

    register()
    register()
    assert AttentionInterface()["chairlift"] is paged_attention
    config = Gemma2Config(
        vocab_size=30, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, head_dim=8,
        num_key_value_heads=1,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(config)
    select_attention(model, "chairlift")
    assert model.model.layers[1].self_attn.config._attn_implementation == "chairlift"
    state = PagedAttention()
    state.attach(model)
    assert getattr(model.model.layers[1].self_attn, ATTRIBUTE) is state and not hasattr(model.lm_head, ATTRIBUTE)


def measured(model: Any) -> PagedAttention:
    """Run the measuring pass of a model."""
    register()
    paged = PagedAttention()
    paged.attach(model)
    select_attention(model, MEASURING)
    with torch.inference_mode():
        base_states(model.model, torch.zeros(2, dtype=torch.int64), torch.arange(2), use_cache=False)
    return paged


def test_scale_and_soft_cap_are_those_of_the_calls() -> None:
    paged = measured(bridged_model("gemma2", attn_logit_softcapping=7.0, query_pre_attn_scalar=25))
    assert [calls[0].spec.softcap for calls in paged.calls.values()] == [7.0] * 3
    assert [calls[0].spec.scale for calls in paged.calls.values()] == [pytest.approx(0.2)] * 3


def test_sinks_are_the_parameters_of_the_calls() -> None:
    model = bridged_model("gpt_oss")
    paged = measured(model)
    for layer, calls in paged.calls.items():
        assert calls[0].spec.sinks is not None
        assert torch.equal(calls[0].spec.sinks, model.model.layers[layer].self_attn.sinks)


def test_narrower_values_are_padded_in_the_cache() -> None:
    model = bridged_model("deepseek_v3", v_head_dim=8, dtype=torch.float64)
    paged = measured(model)
    paged.assign_places(3)
    assert {(each[0].head_dim, each[0].value_dim) for each in paged.calls.values()} == {(24, 8)}
    assert paged.head_dim == 24 and paged.num_kv_heads == 4


@pytest.mark.parametrize(("head_dim", "value_dim"), [(8, 8), (8, 4), (4, 8)])
def test_attention_writes_to_the_cache_and_reads_from_it(head_dim: int, value_dim: int) -> None:
    paged, backend, tokens = assigned(call(width=head_dim, value=value_dim)), ReferenceAttention(), 5
    kv = backend.allocate_kv_cache(1, 4, 4, 2, paged.head_dim, torch.float64, torch.device("cpu"))
    batch = make_batch([Row(tokens, tokens, ((3, 1),))], 4)
    paged.context = ForwardContext(batch, kv, backend, backend.plan(batch))
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, tokens, width, generator=generator, dtype=torch.float64)
        for heads, width in ((4, head_dim), (2, head_dim), (2, value_dim))
    )
    expected = nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=0.25, enable_gqa=True
    )
    made = paged.attend(0, query, key, value)
    assert made.shape == (1, tokens, 4, value_dim)
    torch.testing.assert_close(made, expected.transpose(1, 2))
    assert torch.equal(kv[0].key[3, :, :, :head_dim].transpose(0, 1), key[0, :, :4])


def test_the_step_is_forgotten_after_an_error() -> None:
    class Failing(nn.Module):
        def forward(self, **_: Any) -> None:
            raise ValueError("no")

    paged, batch = assigned(call()), make_batch([Row(1, 1, ((0,),))], 4)
    context: Any = type("Context", (), {"batch": batch})()
    with pytest.raises(ValueError, match="no"):
        paged.run(Failing(), torch.zeros(1, dtype=torch.int64), context)
    assert paged.context is None
