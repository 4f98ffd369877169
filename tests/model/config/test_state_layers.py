"""Configs of layers with a state: sizes of real models, heads that do not fit, Qwen3-Next's order of rows."""

from dataclasses import replace

import pytest

from chairlift.core.errors import ModelError
from chairlift.model.config.state_layers import (
    GatedDeltaNetConfig,
    Mamba2Config,
    ShortConvConfig,
    StateShape,
    ba_row_order,
    qkvz_row_order,
)

QWEN = GatedDeltaNetConfig(num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128)


def test_a_delta_net_of_qwen3_5_has_2_mib_of_recurrent_state_in_a_layer() -> None:
    assert QWEN.channels == 8192
    assert QWEN.state == StateShape((3, 8192), (32, 128, 128), 16)
    assert QWEN.state.num_elements == 32 * 128 * 128 + 3 * 8192
    assert QWEN.state.num_bytes(4) == 2 * 2**20 + 96 * 2**10


def test_a_mamba2_layer_of_granite_4_has_states_for_all_its_channels() -> None:
    granite = Mamba2Config(num_heads=128, head_dim=64, state_size=128)
    assert (granite.inner_width, granite.group_width, granite.channels) == (8192, 128, 8448)
    assert granite.state == StateShape((3, 8448), (128, 128, 64), 1)


def test_a_short_convolution_has_no_recurrent_state() -> None:
    lfm = ShortConvConfig(hidden_size=2048)
    assert lfm.state == StateShape((2, 2048))
    assert lfm.state.num_bytes(4) == 2 * 2048 * 4


def test_a_partial_chunk_has_keys_updates_and_decays_where_the_recurrence_goes_by_chunks() -> None:
    assert QWEN.state.partial_chunk() is None and QWEN.state.partial_chunk_bytes(4) == 0
    by_chunks = replace(QWEN.state, chunk_tokens=16)
    assert by_chunks.partial_chunk() == ((16, 16, 128), (16, 32, 128), (16, 32))
    assert by_chunks.partial_chunk_bytes(4) == 4 * 16 * (16 * 128 + 32 * 128 + 32)
    assert replace(ShortConvConfig(hidden_size=8).state, chunk_tokens=16).partial_chunk_bytes(4) == 0


def test_heads_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(ModelError, match="10 value heads cannot be shared evenly by 4 key heads"):
        GatedDeltaNetConfig(num_key_heads=4, num_value_heads=10, key_dim=8, value_dim=8)
    with pytest.raises(ModelError, match="10 heads cannot be shared evenly by 0 groups"):
        Mamba2Config(num_heads=10, head_dim=8, state_size=8, num_groups=0)


def test_an_unknown_activation_of_the_gate_is_refused() -> None:
    with pytest.raises(ModelError, match="'tanh', known are silu, sigmoid"):
        GatedDeltaNetConfig(num_key_heads=1, num_value_heads=1, key_dim=8, value_dim=8, gate_activation="tanh")


def test_grouped_rows_come_into_the_order_of_separate_projections() -> None:
    config = GatedDeltaNetConfig(num_key_heads=2, num_value_heads=4, key_dim=1, value_dim=2)
    grouped = ["q0", "k0", "v0a", "v0b", "v1a", "v1b", "z0a", "z0b", "z1a", "z1b",
               "q1", "k1", "v2a", "v2b", "v3a", "v3b", "z2a", "z2b", "z3a", "z3b"]  # fmt: skip
    assert [grouped[row] for row in qkvz_row_order(config)] == [
        "q0", "q1", "k0", "k1", "v0a", "v0b", "v1a", "v1b", "v2a", "v2b", "v3a", "v3b",
        "z0a", "z0b", "z1a", "z1b", "z2a", "z2b", "z3a", "z3b",
    ]  # fmt: skip
    grouped = ["b0", "b1", "a0", "a1", "b2", "b3", "a2", "a3"]
    assert [grouped[row] for row in ba_row_order(config)] == ["b0", "b1", "b2", "b3", "a0", "a1", "a2", "a3"]


def test_each_row_has_one_place() -> None:
    assert sorted(qkvz_row_order(QWEN)) == list(range(QWEN.channels + QWEN.value_width))
