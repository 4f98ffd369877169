"""layer_state: parameters and states of layers that keep one; test_model_shape compares the sums with the loader."""

from dataclasses import asdict

import pytest

from chairlift.bench.planning.layer_state import layer_state
from chairlift.model.config.state_layers import GatedDeltaNetConfig, Mamba2Config, ShortConvConfig, StateLayerConfig

CONFIGS: tuple[StateLayerConfig, ...] = (
    GatedDeltaNetConfig(num_key_heads=2, num_value_heads=4, key_dim=16, value_dim=32),
    Mamba2Config(num_heads=8, head_dim=16, state_size=32, num_groups=2, projection_bias=True),
    ShortConvConfig(hidden_size=64, bias=True),
)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_a_state_has_the_elements_that_the_loader_allocates(config: StateLayerConfig) -> None:
    assert layer_state(asdict(config), 64).elements == config.state.num_elements


def test_a_bias_of_each_projection_and_of_the_convolution_is_counted() -> None:
    plain = layer_state(asdict(ShortConvConfig(hidden_size=64)), 64)
    assert layer_state(asdict(CONFIGS[2]), 64).vectors == plain.vectors + 3 * 64 + 64 + 64
