"""LayerGroupLayout: numbers of blocks, against a loop over every position."""

import pytest
from hypothesis import given
from hypothesis.strategies import integers, none

from chairlift.engine.kv.layer_groups import LayerGroupLayout


def test_full_attention_keeps_everything() -> None:
    layout = LayerGroupLayout(None, 4)
    assert [layout.blocks_for(count) for count in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert layout.first_needed(1000) == 0
    assert layout.peak_blocks(10, lookahead=99) == 3


@pytest.mark.parametrize(("window", "num_computed", "first"), [(4, 3, 0), (4, 6, 0), (4, 7, 1), (1, 8, 2), (1, 7, 1)])
def test_a_window_needs_its_own_last_tokens_only(window: int, num_computed: int, first: int) -> None:
    assert LayerGroupLayout(window, 4).first_needed(num_computed) == first


@given(integers(1, 12), integers(1, 5), integers(0, 60))
def test_first_needed_is_the_block_of_the_oldest_position_in_sight(window: int, size: int, computed: int) -> None:
    oldest = min(position for position in range(computed + 1) if computed - position < window)
    assert LayerGroupLayout(window, size).first_needed(computed) == oldest // size


@given(none() | integers(1, 12), integers(1, 5), integers(1, 50), integers(1, 9))
def test_the_peak_is_never_exceeded_and_reached_in_some_place(
    window: int | None, size: int, num_tokens: int, lookahead: int
) -> None:
    layout = LayerGroupLayout(window, size)
    peak = layout.peak_blocks(num_tokens, lookahead)
    held = [
        -(-min(computed + lookahead, num_tokens) // size) - layout.first_needed(computed)
        for computed in range(num_tokens)
    ]
    assert max(held) <= peak <= max(held) + 1
