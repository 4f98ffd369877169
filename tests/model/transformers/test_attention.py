"""PagedAttention: windows of mask functions, what layers ask for, heads that do not fit, calls outside a model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.attention.base import AttentionSpec
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.layers.causal_lm import ForwardContext
from chairlift.model.transformers import attention
from chairlift.model.transformers.attention import (
    FULL,
    LATER,
    MEASURING,
    OTHER,
    LayerCall,
    PagedAttention,
    measuring_mask,
    paged_attention,
    register,
    select_attention,
    window_of,
)
from chairlift.model.transformers.layer_runner import NotCausal, base_states
from support_batches import Row, make_batch
from support_bridged_models import WINDOW, bridged_model


def measured(model: Any) -> PagedAttention:
    """Run the measuring pass of a model."""
    register()
    paged = PagedAttention()
    paged.attach(model)
    select_attention(model, MEASURING)
    with torch.inference_mode():
        base_states(model.model, torch.zeros(2, dtype=torch.int64), torch.arange(2), use_cache=False)
    return paged


def call(window: int | None = None, *, kv_heads: int = 2, head_dim: int = 8, value_dim: int | None = None) -> LayerCall:
    return LayerCall(4, kv_heads, head_dim, value_dim or head_dim, AttentionSpec(0, 0.5, window))


def placed(*calls: LayerCall) -> PagedAttention:
    paged = PagedAttention()
    paged.calls = {layer: [each] for layer, each in enumerate(calls)}
    paged.assign_places(len(calls))
    return paged


@pytest.mark.parametrize(
    ("mask", "window"),
    [
        (causal_mask_function, FULL),
        (sliding_window_causal_mask_function(1), 1),
        (sliding_window_causal_mask_function(20), 20),
        (sliding_window_causal_mask_function(4096), 4096),
        (chunked_causal_mask_function(16, torch.zeros(1, dtype=torch.int64)), OTHER),
        (bidirectional_mask_function, LATER),
        (lambda batch, head, query, key: key == query - 1, OTHER),
        (lambda batch, head, query, key: (key <= query) & (key[5] > 0), OTHER),
    ],
    ids=["full", "window 1", "window 20", "window 4096", "chunked", "bidirectional", "not itself", "of more than this"],
)
def test_the_window_of_a_mask_function(mask: Callable[..., torch.Tensor], window: int) -> None:
    assert window_of(mask) == window
    assert (measuring_mask(1, 3, 4, mask) == torch.full((1, 1, 3, 4), window)).all()


def test_a_model_with_two_windows_has_them_by_layer() -> None:
    paged = measured(bridged_model("gemma2", attn_logit_softcapping=7.0))
    paged.assign_places(3)
    assert paged.windows == (WINDOW, None, WINDOW)
    assert paged.groups.layers_per_group == 1 and len(paged.groups.windows) == 3


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
    paged, backend, tokens = placed(call(head_dim=head_dim, value_dim=value_dim)), ReferenceAttention(), 5
    kv = backend.allocate_kv_cache(1, 4, 4, 2, paged.head_dim, torch.float64, torch.device("cpu"))
    batch = make_batch([Row(tokens, tokens, ((3, 1),))], 4)
    paged.context = ForwardContext(batch, kv, backend, backend.plan(batch))
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, tokens, width, generator=generator, dtype=torch.float64)
        for heads, width in ((4, head_dim), (2, head_dim), (2, value_dim))
    )
    expected = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.5, enable_gqa=True)
    made = paged.attend(0, query, key, value)
    assert made.shape == (1, tokens, 4, value_dim)
    torch.testing.assert_close(made, expected.transpose(1, 2))
    assert torch.equal(kv[0].key[3, :, :, :head_dim].transpose(0, 1), key[0, :, :4])


@pytest.mark.parametrize(
    "others", [call(kv_heads=1), call(head_dim=16), call(value_dim=4)], ids=["heads", "key width", "value width"]
)
def test_layers_with_different_heads_are_refused(others: LayerCall) -> None:
    with pytest.raises(UnsupportedArchitecture, match="different numbers or widths of key/value heads"):
        placed(call(), others)


def test_masks_that_are_no_window_are_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match="neither causal over all tokens nor a sliding window"):
        placed(call(), call(OTHER))
    with pytest.raises(NotCausal, match="attend to later tokens"):
        placed(call(), call(LATER))


def test_layers_without_a_call_or_with_two_are_refused() -> None:
    paged = PagedAttention()
    paged.calls = {0: [call()]}
    with pytest.raises(UnsupportedArchitecture, match="2 of its 3 layers do not use transformers' attention interface"):
        paged.assign_places(3)
    paged.calls = {0: [call(), call()]}
    with pytest.raises(UnsupportedArchitecture, match="uses its attention several times in one pass"):
        paged.assign_places(1)


def test_a_module_of_another_model_cannot_call_the_attention() -> None:
    register()
    model = transformers.AutoModelForCausalLM.from_config(
        bridged_model("olmo2").config, attn_implementation=attention.IMPLEMENTATION
    )
    with pytest.raises(RuntimeError, match="Olmo2Attention does not belong to a model that Chairlift loaded"):
        model(torch.tensor([[5, 6]]))


def test_a_pass_outside_a_step_is_an_error() -> None:
    module = nn.Module()
    module.layer_idx = 0
    placed(call()).attach(module)
    states = torch.zeros(1, 4, 2, 8)
    with pytest.raises(RuntimeError, match="reads a paged KV cache; run it through Chairlift"):
        paged_attention(module, states, states[:, :2], states[:, :2], None)


def test_the_step_is_forgotten_after_an_error() -> None:
    class Failing(nn.Module):
        def forward(self, **_: Any) -> None:
            raise ValueError("no")

    paged, batch = placed(call()), make_batch([Row(1, 1, ((0,),))], 4)
    context: Any = type("Context", (), {"batch": batch})()
    with pytest.raises(ValueError, match="no"):
        paged.run(Failing(), torch.zeros(1, dtype=torch.int64), context)
    assert paged.context is None
