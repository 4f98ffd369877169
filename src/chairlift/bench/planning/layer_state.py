"""LayerState: the parameters and the state of a layer that keeps a state instead of keys and values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STATE_ELEMENT_BYTES = 4
"""Bytes of a number of a state, whatever the model's dtype, unless that is float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """One layer, in elements.

    Attributes:
        matrices: weights of its projections.
        vectors: convolution, norm, biases and the numbers of its heads.
        elements: numbers of one sequence's state.
    """

    matrices: int
    vectors: int
    elements: int


def layer_state(config: Mapping[str, Any], hidden: int) -> LayerState:
    """Return the layer with the fields of one of the loader's configs of layers with a state (state_layers.py)."""
    width = config["conv_width"]
    if "num_key_heads" in config:
        heads, values = config["num_value_heads"], config["num_value_heads"] * config["value_dim"]
        channels = 2 * config["num_key_heads"] * config["key_dim"] + values
        return LayerState(
            matrices=hidden * (channels + 2 * values + 2 * heads),
            vectors=channels * width + 2 * heads + config["value_dim"],
            elements=(width - 1) * channels + values * config["key_dim"],
        )
    if "state_size" in config:
        heads, inner = config["num_heads"], config["num_heads"] * config["head_dim"]
        channels = inner + 2 * config["num_groups"] * config["state_size"]
        biases = channels * config["conv_bias"] + (inner + channels + heads + hidden) * config["projection_bias"]
        return LayerState(
            matrices=hidden * (2 * inner + channels + heads),
            vectors=channels * width + 3 * heads + inner + biases,
            elements=(width - 1) * channels + inner * config["state_size"],
        )
    return LayerState(
        matrices=4 * hidden * hidden, vectors=hidden * (width + 5 * config["bias"]), elements=(width - 1) * hidden
    )
