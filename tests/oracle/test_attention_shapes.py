"""Layers without v_proj, with normalised values, or with the keys and values of another layer: logits as computed plainly."""

import random

import pytest
import torch

from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.loading.model_building import parameter_shapes
from support_attention_shapes import SOURCES, VOCAB_SIZE, attention_config, attention_model, dense_logits
from support_batches import teacher_forced_logits

_rng = random.Random(5)
BATCH = [[_rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 18, 70, 45)]


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("backend", [ReferenceAttention, TorchAttention])
def test_logits_are_those_of_a_plain_computation(backend: type, block_size: int) -> None:
    config = attention_config()
    model, weights = attention_model(config, "float64")
    found = teacher_forced_logits(
        model, BATCH, torch.float64, max_chunk=16, block_size=block_size, backend=backend()
    )  # fmt: skip
    for logits, ids in zip(found, BATCH, strict=True):
        expected = dense_logits(config, weights, ids)
        assert expected.std() > 0.05
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)


def test_only_layers_with_keys_of_their_own_have_parameters_for_them() -> None:
    shapes = parameter_shapes(attention_config())
    for layer, source in enumerate(SOURCES):
        parts = {name for name in "qkvo" if f"model.layers.{layer}.self_attn.{name}_proj.weight" in shapes}
        assert parts == ({"q", "o"} if source is not None else {"q", "k", "o"} if layer in (1, 3) else {*"qkvo"})
        assert (f"model.layers.{layer}.self_attn.k_norm.weight" in shapes) == (source is None)
        assert f"model.layers.{layer}.self_attn.v_norm.weight" not in shapes


def test_a_layer_that_reads_other_keys_takes_no_place_in_the_cache() -> None:
    groups = attention_config().layer_groups
    assert groups.windows == (20, None) and groups.layers_per_group == 2
    assert groups.places == ((0, 0), (1, 0), (0, 1), (1, 1), (0, 1), (1, 1), (0, 1))
