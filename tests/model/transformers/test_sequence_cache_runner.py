"""SequenceCacheRunner: the paged cache in the place of transformers' cache, and models that it cannot hold."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import OpenAIGPTConfig
from transformers.cache_utils import Cache

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.transformers.causal_lm import base_of
from chairlift.model.transformers.sequence_cache_runner import PagedCacheLayer, SequenceCacheRunner
from support_batches import Row, make_batch
from support_bridged_models import BRIDGED, bridged_model, model_of
from support_shares import for_each

CPU = torch.device("cpu")


def context(rows: list[Row], width: int = 8) -> ForwardContext:
    backend = TorchAttention()
    kv = backend.allocate_kv_cache(1, 20, 4, 2, width, torch.float64, CPU)
    batch = make_batch(rows, 4)
    return ForwardContext(batch, kv, backend, backend.plan(batch))


def test_a_layer_returns_all_keys_and_values_of_its_sequence_at_their_own_widths() -> None:
    first = context([Row(3, 3, ((5, 7),)), Row(6, 6, ((9, 2),))])
    states = [[torch.randn(1, 2, count, width).double() for width in (8, 6)] for count in (3, 6)]
    for sequence, (key, value) in enumerate(states):
        layer = PagedCacheLayer(first, sequence, 0, 8)
        assert layer.get_seq_length() == 0 and layer.get_mask_sizes(key.shape[2]) == (key.shape[2], 0)
        found = layer.update(key, value)
        assert torch.equal(found[0], key) and torch.equal(found[1], value)
        assert layer.get_seq_length() == key.shape[2] and layer.get_max_length() == -1
    batch = make_batch([Row(1, 7, ((9, 2),)), Row(2, 5, ((5, 7),))], 4)
    second = ForwardContext(batch, first.kv, first.backend, first.backend.plan(batch))
    key, value = (torch.randn(1, 2, 2, width).double() for width in (8, 6))
    layer = PagedCacheLayer(second, 1, 0, 8)
    assert layer.get_seq_length() == 3
    found = layer.update(key, value)
    for whole, before, new in zip(found, states[0], (key, value), strict=True):
        assert torch.equal(whole, torch.cat([before, new], 2))


def test_a_cache_of_8_bit_floats_returns_rounded_keys_in_the_dtype_of_the_model() -> None:
    backend, batch = TorchAttention(), make_batch([Row(3, 3, ((5, 7),))], 4)
    kv = backend.allocate_kv_cache(1, 20, 4, 2, 8, torch.float8_e4m3fn, CPU)
    layer = PagedCacheLayer(ForwardContext(batch, kv, backend, None), 0, 0, 8)
    key, value = torch.randn(2, 1, 2, 3, 8).double()
    for found, exact in zip(layer.update(key, value), (key, value), strict=True):
        assert found.dtype == torch.float64 and torch.equal(found, exact.to(torch.float8_e4m3fn).double())


def test_sequences_beside_each_other_are_computed_as_alone() -> None:
    base = base_of(bridged_model("gptj", dtype=torch.float64))
    runner = SequenceCacheRunner(base, 3)
    assert (runner.num_kv_heads, runner.head_dim, runner.windows) == (4, 16, (None,) * 3)
    kv = TorchAttention().allocate_kv_cache(3, 20, 4, 4, 16, torch.float64, CPU)
    batch, backend = make_batch([Row(5, 5, ((5, 7),)), Row(2, 2, ((9,),))], 4), TorchAttention()
    ids = torch.tensor([3, 4, 5, 6, 7, 8, 9])
    with torch.inference_mode():
        states = runner.run(base, ids, ForwardContext(batch, kv, backend, backend.plan(batch)))
        for part in (slice(0, 5), slice(5, 7)):
            assert torch.allclose(states[part], base(ids[part][None]).last_hidden_state[0], atol=1e-10)


class Base(nn.Module):
    """Caches what a test says."""

    def __init__(self, shapes: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.weight, self.shapes = nn.Parameter(torch.zeros(1)), shapes

    def forward(self, input_ids: Tensor, past_key_values: Cache, return_dict: bool, use_cache: bool) -> Any:
        for layer, (heads, tokens, width) in enumerate(self.shapes):
            states = torch.zeros(1, heads, tokens, width)
            past_key_values.update(states, states, layer)
        return SimpleNamespace(last_hidden_state=torch.zeros(1, 2, 1))


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ([], "not all of its 2 layers keep keys and values"),
        ([(2, 2, 8)], "not all of its 2 layers keep keys and values"),
        ([(2, 2, 8), (2, 1, 8)], "not all of its 2 layers keep keys and values"),
        ([(2, 2, 8), (1, 2, 8)], "different numbers or widths"),
        ([(2, 2, 8), (2, 2, 16)], "different numbers or widths"),
    ],
)
def test_layers_without_keys_of_every_token_or_of_several_shapes_are_refused(
    shapes: list[tuple[int, int, int]], reason: str
) -> None:
    with pytest.raises(UnsupportedArchitecture, match=reason):
        SequenceCacheRunner(Base(shapes), 2)


@for_each("kind", [kind for kind, entry in BRIDGED.items() if entry.runs == "sequence"])
def test_sizes_are_those_of_the_layers(kind: str) -> None:
    model = bridged_model(kind)
    layers = model.config.num_hidden_layers
    runner = SequenceCacheRunner(base_of(model), layers)
    assert runner.head_dim * runner.num_kv_heads in {16, 32, 64}
    assert runner.windows == (None,) * layers and len(runner.groups.caches) == layers


def test_a_model_that_keeps_no_keys_is_refused() -> None:
    config = OpenAIGPTConfig(vocab_size=304, n_embd=64, n_layer=2, n_head=4)
    model = model_of(config)
    with pytest.raises(UnsupportedArchitecture, match="not all of its 2 layers keep keys and values"):
        SequenceCacheRunner(model.transformer, 2)
