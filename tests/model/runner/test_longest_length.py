"""size_for_longest: by bisection the greatest length that fits, compared with every length one after another."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.batch.kv_cache_shape import KVCacheShape, full_length_blocks
from chairlift.model.runner.kv_cache_sizing import KVCacheSize
from chairlift.model.runner.longest_length import size_for_longest


def sized(length: int, memory: int, step_bytes_per_token: int, num_groups: int = 1) -> tuple[KVCacheShape, KVCacheSize]:
    """Size a cache of 100-byte blocks of 4 tokens; a step of longer sequences leaves it less."""
    pool = KVCacheShape(
        groups=num_groups, page_width=1, block_size=4, itemsize=1,
        max_running_requests=8, max_model_len=length,
    )  # fmt: skip
    num_blocks = (memory - step_bytes_per_token * length) // 100
    if num_blocks < 1:
        raise ConfigError("nothing is left for the KV cache", option="max_memory")
    return pool, KVCacheSize(num_blocks, 100, (("num_blocks", str(num_blocks)),))


@pytest.mark.parametrize("windows", [(None,), (None, 8), (8,)])
@pytest.mark.parametrize("step_bytes", [0, 1, 30])
@pytest.mark.parametrize("memory", [300, 1000, 5000, 10**6])
def test_the_length_is_the_greatest_of_which_the_cache_holds_one_sequence(
    windows: tuple[int | None, ...], step_bytes: int, memory: int
) -> None:
    def fits(length: int) -> bool:
        try:
            pool, size = sized(length, memory, step_bytes, len(windows))
        except ConfigError:
            return False
        return full_length_blocks(pool, windows) <= size.num_blocks

    length, size = size_for_longest(lambda each: sized(each, memory, step_bytes, len(windows)), windows, 200)
    assert length == max(each for each in range(2, 201) if fits(each))
    assert size == sized(length, memory, step_bytes, len(windows))[1]


def test_where_nothing_fits_the_error_is_that_of_the_shortest_sequence() -> None:
    with pytest.raises(ConfigError, match="nothing is left"):
        size_for_longest(lambda length: sized(length, 50, 0), (None,), 200)
