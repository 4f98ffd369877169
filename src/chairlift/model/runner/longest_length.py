"""size_for_longest: the longest sequences, up to the model's own limit, of which the KV cache holds one."""

from collections.abc import Callable, Sequence

from chairlift.core.errors import ConfigError
from chairlift.model.batch.kv_cache_shape import KVCacheShape, full_length_blocks
from chairlift.model.runner.kv_cache_sizing import KVCacheSize

MIN_LENGTH = 2
"""Tokens of the shortest sequence: one of the prompt and one of the output."""

Sized = tuple[KVCacheShape, KVCacheSize]


def size_for_longest(
    size: Callable[[int], Sized], windows: Sequence[int | None], limit: int
) -> tuple[int, KVCacheSize]:  # fmt: skip
    """Return the greatest length in tokens, at most `limit`, of which the cache holds one sequence, and that cache.

    Longer sequences need more memory in a step, so less is left for the cache: it is sized for each length that is
    tried, by bisection.

    Args:
        size: sizes the cache for a length; raises ConfigError where nothing is left for it.
        windows: one entry for each layer group, None for full attention.
        limit: the model's own limit in tokens.

    Raises ConfigError where the cache does not hold the shortest sequence either.
    """
    shortest = size(MIN_LENGTH)  # raises the reason
    if (found := _fitting(size, windows, limit)) is not None:
        return limit, found
    low, high, best = MIN_LENGTH, limit, shortest[1]
    while high - low > 1:
        middle = (low + high) // 2
        found = _fitting(size, windows, middle)
        if found is None:
            high = middle
        else:
            low, best = middle, found
    return low, best


def _fitting(size: Callable[[int], Sized], windows: Sequence[int | None], length: int) -> KVCacheSize | None:
    """Return the cache if it holds a sequence of this length, else None."""
    try:
        pool, sized = size(length)
    except ConfigError:
        return None
    return sized if full_length_blocks(pool, windows) <= sized.num_blocks else None
