"""LayerMLP: which layers of a mixture have experts; test_model_shape.py compares the sizes with built models."""

from typing import Any

import pytest

from chairlift.bench.planning.config_values import ConfigValues
from chairlift.bench.planning.layer_mlp import layer_mlps
from chairlift.core.errors import ConfigError
from support_shares import for_each


def layers_with_experts(**fields: Any) -> list[int]:
    values = ConfigValues.of({"intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2, **fields})
    mlps = layer_mlps(values, 4, 6, has_bias=False)
    return [layer for layer, mlp in enumerate(mlps) if mlp.num_experts]


@for_each(
    ("fields", "layers"),
    [
        ({}, [0, 1, 2, 3, 4, 5]), ({"num_experts": 1}, []), ({"num_experts": None}, []),
        ({"first_k_dense_replace": 2}, [2, 3, 4, 5]), ({"decoder_sparse_step": 2}, [1, 3, 5]),
        ({"mlp_only_layers": [0, 5]}, [1, 2, 3, 4]), ({"moe_layer_freq": 2}, [0, 2, 4]),
    ],
)  # fmt: skip
def test_layers_with_experts(fields: dict[str, Any], layers: list[int]) -> None:
    assert layers_with_experts(**fields) == layers


def test_a_token_uses_the_chosen_experts_and_the_shared_one() -> None:
    values = ConfigValues.of({
        "intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "moe_intermediate_size": 2,
    })  # fmt: skip
    mlp = layer_mlps(values, 4, 1, has_bias=False)[0]
    assert (mlp.expert, mlp.matrices, mlp.active_matrices) == (24, 5 * 24, 3 * 24)


def test_more_chosen_experts_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok is 9, but there are 4 experts"):
        layers_with_experts(num_experts_per_tok=9)
