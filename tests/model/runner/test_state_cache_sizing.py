"""size_states: shares of the memory for caches, and the error when the state of one sequence does not fit."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.config.state_layers import StateShape
from chairlift.model.runner.kv_cache_sizing import CACHED_BYTES
from chairlift.model.runner.state_cache_sizing import MAX_CHECKPOINTS, size_states

SHAPES = (StateShape((3, 64), (4, 16, 16)), StateShape((3, 64)))
STATE_BYTES = 4 * (2 * 3 * 64 + 4 * 16 * 16)


def test_states_have_a_half_and_checkpoints_a_quarter_of_the_memory() -> None:
    size = size_states(SHAPES, 4, 40 * STATE_BYTES, 256, on_host=True)
    assert (size.num_slots, size.num_checkpoints, size.state_bytes) == (20, 10, STATE_BYTES)
    assert size.num_bytes == 30 * STATE_BYTES
    assert "20 sequences" in dict(size.report())["states"]


def test_there_are_no_more_states_than_sequences_and_no_more_checkpoints_than_are_of_use() -> None:
    size = size_states(SHAPES, 4, 10**12, 256, on_host=False)
    assert (size.num_slots, size.num_checkpoints) == (256, MAX_CHECKPOINTS)


def test_checkpoints_on_the_host_have_the_memory_of_cached_blocks_at_most() -> None:
    large = (StateShape((3, 64), (64, 512, 512)),)
    size = size_states(large, 4, 2**36, 256, on_host=True)
    assert size.num_checkpoints == CACHED_BYTES // size.state_bytes


def test_a_state_that_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"the state of one sequence has .* raise max_memory"):
        size_states(SHAPES, 4, STATE_BYTES, 8, on_host=True)
