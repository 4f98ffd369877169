"""size_states: shares of the memory for caches, and the error when the state of one sequence does not fit."""

from dataclasses import replace

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.batch.kv_cache_shape import SPARE_BLOCKS
from chairlift.model.config.layer_groups import AttentionShape, LayerGroups
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.state_layers import StateShape
from chairlift.model.runner.free_memory import FreeMemory
from chairlift.model.runner.kv_cache_sizing import cache_budget, size_kv_cache
from chairlift.model.runner.state_cache_sizing import MAX_CHECKPOINTS, plan_states, size_states
from chairlift.model.runner.step_memory_estimate import memory_shapes
from support_architectures import config_of

SHAPES = (StateShape((3, 64), (4, 16, 16)), StateShape((3, 64)))
STATE_BYTES = 4 * (2 * 3 * 64 + 4 * 16 * 16)


def test_states_have_a_half_and_checkpoints_a_quarter_of_the_memory() -> None:
    size = size_states(SHAPES, 4, 40 * STATE_BYTES, 256)
    assert (size.num_slots, size.num_checkpoints, size.state_bytes) == (20, 10, STATE_BYTES)
    assert size.num_bytes == 30 * STATE_BYTES
    assert "20 sequences" in dict(size.report())["states"]


def test_running_sequences_have_a_partial_chunk_and_checkpoints_have_none() -> None:
    chunked = replace(SHAPES[0], key_heads=2, chunk_tokens=8)
    partial_bytes = 4 * 8 * (2 * 16 + 4 * 16 + 4)
    state_bytes = chunked.num_bytes(4)
    size = size_states((chunked,), 4, 8 * (state_bytes + partial_bytes), 3)
    assert (size.num_slots, size.state_bytes) == (3, state_bytes)
    assert size.num_checkpoints == 2 * (state_bytes + partial_bytes) // state_bytes
    assert size.num_bytes == (3 + size.num_checkpoints) * state_bytes + 3 * partial_bytes
    assert f"3 sequences of {(state_bytes + partial_bytes) / 1024:.1f} KiB" in dict(size.report())["states"]
    with pytest.raises(ConfigError, match="the state of one sequence has"):
        size_states((chunked,), 4, 2 * state_bytes, 3)


def test_there_are_no_more_states_than_sequences_and_no_more_checkpoints_than_are_of_use() -> None:
    size = size_states(SHAPES, 4, 10**12, 256)
    assert (size.num_slots, size.num_checkpoints) == (256, MAX_CHECKPOINTS)


def test_checkpoints_have_no_more_memory_than_is_said() -> None:
    assert size_states(SHAPES, 4, 40 * STATE_BYTES, 256, max_checkpoint_bytes=3 * STATE_BYTES).num_checkpoints == 3


def test_the_longest_sequence_keeps_its_kv_cache() -> None:
    size = size_states(SHAPES, 4, 40 * STATE_BYTES, 256, kv_bytes=30 * STATE_BYTES)
    assert (size.num_slots, size.num_checkpoints) == (10, 0)
    size = size_states(SHAPES, 4, 40 * STATE_BYTES, 256, kv_bytes=15 * STATE_BYTES)
    assert (size.num_slots, size.num_checkpoints) == (20, 5)
    assert size_states(SHAPES, 4, 40 * STATE_BYTES, 256, kv_bytes=10**9).num_slots == 1


def test_a_convolution_of_one_token_has_no_state() -> None:
    assert size_states((StateShape((0, 64)),), 4, 1000, 8).num_slots == 8


def test_a_state_that_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"the state of one sequence has .* raise max_memory"):
        size_states(SHAPES, 4, STATE_BYTES, 8)


@pytest.mark.parametrize("max_memory", [None, 0.5, 0.9, 3 * 10**8])
def test_states_and_kv_cache_have_one_budget(max_memory: float | int | None) -> None:
    free, groups = FreeMemory(10**9, "free"), LayerGroups.of((None,), (AttentionShape(1, 1),))
    options, config = (
        RunnerConfig(max_memory=max_memory, max_batch_tokens=64),
        config_of("granite_hybrid", dtype="bfloat16"),
    )
    pool, step = memory_shapes(options, config, groups, 512)
    states = plan_states(options, config, free, step.peak_bytes(), pool, shapes=config.state_shapes, on_host=True)
    assert states is not None and states.num_checkpoints > 0
    kv = size_kv_cache(pool, step, free, on_host=True, max_memory=max_memory, reserved=states.num_bytes)
    budget, _ = cache_budget(max_memory, free.num_bytes - step.peak_bytes(), 1, on_host=True)
    assert states.num_bytes + (kv.num_blocks + SPARE_BLOCKS) * pool.page_bytes <= budget


def test_a_model_without_states_needs_no_plan() -> None:
    options, config = RunnerConfig(), config_of("llama", dtype="bfloat16")
    pool, step = memory_shapes(options, config, config.layer_groups, 512)
    assert (
        plan_states(options, config, FreeMemory(10**9, "free"), step.peak_bytes(), pool, shapes=(), on_host=True)
        is None
    )
