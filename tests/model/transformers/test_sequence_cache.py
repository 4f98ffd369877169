"""SequenceCacheRunner, PagedCacheLayer: transformers' Cache over pages; layers that keep nothing in it are refused."""

from typing import Any

import pytest
import torch
import transformers

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.layers.causal_lm import ForwardContext
from chairlift.model.transformers.sequence_cache import PagedCacheLayer, SequenceCacheRunner
from support_batches import Row, make_batch
from support_bridged_models import BRIDGED, bridged_model, model_of

WIDTH = 8
BLOCK = 4


def context_of(*rows: Row) -> ForwardContext:
    backend = ReferenceAttention()
    kv = backend.allocate_kv_cache(1, 8, BLOCK, 2, WIDTH, torch.float64, torch.device("cpu"))
    kv[0].key.fill_(torch.nan)
    kv[0].value.fill_(torch.nan)
    batch = make_batch(rows, BLOCK)
    return ForwardContext(batch, kv, backend, backend.plan(batch))


def states(tokens: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(1, 2, tokens, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_layer_returns_the_whole_sequence_from_scattered_blocks() -> None:
    key, value = states(6, WIDTH, 0), states(6, 5, 1)
    first = context_of(Row(4, 4, ((6, 2),)))
    layer = PagedCacheLayer(first, 0, 0, WIDTH)
    assert layer.get_seq_length() == 0 and layer.get_mask_sizes(4) == (4, 0)
    layer.update(key[:, :, :4], value[:, :, :4])
    assert layer.get_seq_length() == 4
    batch = make_batch([Row(2, 6, ((6, 2),))], BLOCK)
    layer = PagedCacheLayer(ForwardContext(batch, first.kv, first.backend, None), 0, 0, WIDTH)
    assert layer.get_seq_length() == 4 and layer.get_mask_sizes(2) == (6, 0)
    found = layer.update(key[:, :, 4:], value[:, :, 4:])
    assert torch.equal(found[0], key) and torch.equal(found[1], value)
    assert layer.get_seq_length() == 6 and layer.get_max_length() == -1


def test_sequences_of_a_step_do_not_see_each_other() -> None:
    context = context_of(Row(1, 1, ((0,),)), Row(3, 3, ((1,),)))
    keys, values = states(4, WIDTH, 0), states(4, WIDTH, 1)
    for sequence, tokens in ((0, slice(0, 1)), (1, slice(1, 4))):
        found = PagedCacheLayer(context, sequence, 0, WIDTH).update(keys[:, :, tokens], values[:, :, tokens])
        assert torch.equal(found[0], keys[:, :, tokens]) and torch.equal(found[1], values[:, :, tokens])


@pytest.mark.parametrize("kind", [kind for kind, entry in BRIDGED.items() if entry.runs == "sequence"])
def test_sizes_are_those_of_the_layers(kind: str) -> None:
    model = bridged_model(kind)
    layers = model.config.num_hidden_layers
    runner = SequenceCacheRunner(model.base_model, layers)
    assert runner.head_dim * runner.num_kv_heads in {16, 32, 64}
    assert runner.windows == (None,) * layers and runner.groups.layers_per_group == layers


def test_a_model_that_keeps_no_keys_is_refused() -> None:
    config = transformers.OpenAIGPTConfig(vocab_size=304, n_embd=64, n_layer=2, n_head=4)
    model = model_of(config)
    with pytest.raises(UnsupportedArchitecture, match="not all of its 2 layers keep keys and values"):
        SequenceCacheRunner(model.transformer, 2)


def test_layers_with_different_heads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = bridged_model("olmo2")
    attention = model.model.layers[1].self_attn
    attention.k_proj = torch.nn.Linear(64, 16, dtype=torch.float64)
    attention.v_proj = torch.nn.Linear(64, 16, dtype=torch.float64)
    attention.k_norm = torch.nn.Identity()
    attention.num_key_value_groups = 4
    with pytest.raises(UnsupportedArchitecture, match="different numbers or widths of key/value heads"):
        SequenceCacheRunner(model.model, 3)
