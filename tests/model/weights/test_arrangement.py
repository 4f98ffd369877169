"""arranged: joined projections apart, heads in the order in which they rotate, and shapes that do not fit."""

import pytest
import torch

from chairlift.core.errors import ModelError
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.loading.model_building import parameter_shapes
from chairlift.model.weights.arrangement import arranged
from support_architectures import StoredTensor, config_of

QKV, QUERY, KEY, VALUE = (f"model.layers.1.self_attn.{name}_proj.weight" for name in ("qkv", "q", "k", "v"))
GATE_UP, GATE, UP = (f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate_up", "gate", "up"))


def found(config: DecoderConfig, **stored: torch.Tensor) -> dict[str, torch.Tensor]:
    weights = {name: StoredTensor(name, tensor) for name, tensor in stored.items()}
    return {name: weight.dense() for name, weight in arranged(weights, config, parameter_shapes(config)).items()}


def test_a_joined_projection_becomes_its_parts() -> None:
    joined, both = torch.randn(128, 64), torch.randn(192, 64)
    parts = found(config_of("phi3"), **{QKV: joined, GATE_UP: both})
    assert parts.keys() == {QUERY, KEY, VALUE, GATE, UP}
    assert torch.equal(torch.cat([parts[name] for name in (QUERY, KEY, VALUE)]), joined)
    assert torch.equal(torch.cat([parts[name] for name in (GATE, UP)]), both)


def test_parts_that_are_stored_apart_stay() -> None:
    query = torch.randn(64, 64)
    assert torch.equal(found(config_of("phi3"), **{QUERY: query})[QUERY], query)


@pytest.mark.parametrize("num_rows", [60, 127, 129, 192])
def test_a_joined_projection_with_other_rows_is_refused_by_its_name(num_rows: int) -> None:
    with pytest.raises(ModelError, match=r"qkv_proj.weight in .* has shape .*, config.json requires 128 rows"):
        found(config_of("phi3"), **{QKV: torch.randn(num_rows, 64)})


def test_a_joined_projection_beside_one_of_its_parts_is_refused() -> None:
    with pytest.raises(ModelError, match="is stored twice"):
        found(config_of("phi3"), **{QKV: torch.randn(128, 64), QUERY: torch.randn(64, 64)})


def test_a_scalar_in_the_place_of_a_weight_stays_for_the_error() -> None:
    assert found(config_of("glm4"), **{QUERY: torch.tensor(1.0)})[QUERY].shape == ()


def test_heads_are_in_the_order_in_which_they_rotate() -> None:
    config = config_of("glm4", head_dim=8)
    query, value = torch.arange(32.0)[:, None].expand(32, 64), torch.randn(16, 64)
    parts = found(config, **{QUERY: query, VALUE: value, QUERY.replace("weight", "bias"): torch.arange(32.0)})
    order = [8 * head + element for head in range(4) for element in (0, 2, 4, 5, 1, 3, 6, 7)]
    assert parts[QUERY][:, 0].tolist() == order == parts[QUERY.replace("weight", "bias")].tolist()
    assert torch.equal(parts[VALUE], value)


def test_a_joined_projection_is_cut_and_ordered() -> None:
    config = config_of("phi3-partial")
    joined = torch.arange(192.0)[:, None].expand(192, 96)
    key = found(config, **{QKV: joined})[KEY][:, 0].tolist()
    order = config.rope.row_order(24)
    assert order is not None
    assert key == [96 + 24 * head + element for head in range(2) for element in order]


def test_a_weight_of_a_wrong_shape_stays_for_the_error() -> None:
    assert found(config_of("glm4"), **{QUERY: torch.randn(7, 64)})[QUERY].shape == (7, 64)


def test_tensors_that_files_have_without_use_are_left_out() -> None:
    config = config_of("gemma4")
    unused, used = (f"model.layers.{layer}.self_attn.k_proj.weight" for layer in (3, 2))
    found = arranged({name: StoredTensor(name, torch.ones(16, 64)) for name in (unused, used)}, config, [used])
    assert set(found) == {used}
