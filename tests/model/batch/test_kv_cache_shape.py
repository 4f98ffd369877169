"""KVCacheShape: the blocks of one sequence, with and without several layer groups."""

from dataclasses import replace

import pytest

from chairlift.core.errors import ConfigError
from chairlift.engine.kv.layer_groups import LayerGroupLayout, peak_blocks
from chairlift.model.batch.kv_cache_shape import (
    KVCacheShape,
    check_max_bytes,
    check_num_blocks,
    full_length_blocks,
    kv_cache_shape,
)
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.loading.tiny_model import tiny_config
from support_shares import for_each

SHAPE = KVCacheShape(
    groups=3, page_width=2 * 2 * 8, block_size=16, itemsize=2, max_running_requests=4, max_model_len=100,
)  # fmt: skip


def test_a_sequence_has_blocks_in_every_group() -> None:
    assert SHAPE.min_blocks == 3 * 2 and SHAPE.useful_blocks == 4 * 3 * 7
    assert SHAPE.page_bytes == 2 * 2 * 16 * 2 * 8 * 2


@pytest.mark.parametrize(("dtype", "times"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
def test_more_blocks_of_8_bit_floats_have_the_same_bytes(dtype: str, times: int) -> None:
    model = replace(tiny_config(), dtype=dtype)
    groups = model.layer_groups
    wide, narrow = (
        kv_cache_shape(RunnerConfig(kv_cache_dtype=option), model, groups, 100) for option in ("auto", "fp8")
    )
    assert wide.page_bytes == times * narrow.page_bytes


@for_each(
    ("windows", "max_model_len", "needed"),
    [
        ((None,), 97, 6), ((None,), 98, 7), ((None, None, None), 100, 21), ((32, 32, None), 100, 3 + 3 + 7),
        ((33, None), 100, 3 + 7), ((34, None), 100, 4 + 7), ((500, None), 100, 14),
    ],
)  # fmt: skip
def test_a_sequence_of_full_length_keeps_only_the_blocks_of_its_window(
    windows: tuple[int | None, ...], max_model_len: int, needed: int
) -> None:
    shape = replace(SHAPE, max_model_len=max_model_len, groups=len(windows))
    assert full_length_blocks(shape, windows) == needed
    check_num_blocks(shape, windows, needed)
    with pytest.raises(ConfigError) as caught:
        check_num_blocks(shape, windows, needed - 1)
    assert f"max_model_len {max_model_len} tokens needs {needed}; raise it, or " in caught.value.message
    assert caught.value.details["option"] == "num_blocks"
    layouts = [LayerGroupLayout(window, shape.block_size) for window in windows]
    assert peak_blocks(layouts, max_model_len - 1, lookahead=1) == needed, "what the engine computes for such a request"


def test_the_bytes_hold_a_short_sequence_and_the_spare_block() -> None:
    check_max_bytes(SHAPE, 7 * SHAPE.page_bytes)
    with pytest.raises(ConfigError, match=f"needs at least 7 blocks of {SHAPE.page_bytes} bytes"):
        check_max_bytes(SHAPE, 7 * SHAPE.page_bytes - 1)
