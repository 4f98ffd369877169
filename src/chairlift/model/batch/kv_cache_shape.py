"""KVCacheShape: the size of a KV cache block and the numbers of blocks that are useful. Imports no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.core.errors import ConfigError
from chairlift.model.config.layer_groups import LayerGroups
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.device.dtypes import kv_cache_dtype_bytes

MIN_BLOCKS_PER_GROUP = 2
SPARE_BLOCKS = 1
"""Blocks that every layer has after those of the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheShape:
    """The values that decide how many blocks are useful, and their size.

    Attributes:
        groups: layer groups; each sequence has a block table in every one.
        page_width: elements of the keys of one token in a block (LayerGroups).
        itemsize: bytes of one element.
    """

    groups: int
    page_width: int
    block_size: int
    itemsize: int
    max_running_requests: int
    max_model_len: int

    @property
    def page_bytes(self) -> int:
        """Bytes of a block: keys and values of block_size tokens in one layer group."""
        return 2 * self.block_size * self.page_width * self.itemsize

    @property
    def useful_blocks(self) -> int:
        """Blocks that the largest batch of the longest sequences would hold."""
        return self.max_running_requests * self.groups * math.ceil(self.max_model_len / self.block_size)

    @property
    def min_blocks(self) -> int:
        """Blocks that one short sequence needs to run."""
        return self.groups * min(MIN_BLOCKS_PER_GROUP, math.ceil(self.max_model_len / self.block_size))


def kv_cache_shape(config: RunnerConfig, model: ModelConfig, groups: LayerGroups, max_model_len: int) -> KVCacheShape:
    """Return the shape of the cache with these options; `model` has the dtype as loaded."""
    return KVCacheShape(
        groups=len(groups.windows),
        page_width=groups.page_width,
        block_size=config.block_size,
        itemsize=kv_cache_dtype_bytes(config.kv_cache_dtype, model.dtype),
        max_running_requests=config.max_running_requests,
        max_model_len=max_model_len,
    )


def full_length_blocks(pool: KVCacheShape, windows: Sequence[int | None]) -> int:
    """Return the least blocks that hold one sequence of max_model_len tokens.

    The last output token is never an input, so it needs no block. A layer group with a window keeps the blocks that the
    window touches; a long prefill chunk may need more.
    """
    whole = math.ceil((pool.max_model_len - 1) / pool.block_size)
    return sum(
        whole if window is None else min(whole, math.ceil((window - 1) / pool.block_size) + 1) for window in windows
    )


def check_num_blocks(pool: KVCacheShape, windows: Sequence[int | None], num_blocks: int) -> None:
    """Raise ConfigError if one sequence of max_model_len tokens needs more than `num_blocks` blocks.

    `windows` has one entry per layer group, None for full attention.
    """
    needed = full_length_blocks(pool, windows)
    if num_blocks < needed:
        is_simple = tuple(windows) == (None,)
        lower = (
            f"set max_model_len to {num_blocks * pool.block_size + 1} or less" if is_simple else "lower max_model_len"
        )
        raise ConfigError(
            f"num_blocks is {num_blocks}, a request of max_model_len {pool.max_model_len} tokens needs {needed}; "
            f"raise it, or {lower}",
            option="num_blocks", needed=needed, blocks=num_blocks,
        )  # fmt: skip


def check_max_bytes(pool: KVCacheShape, max_bytes: int, num_sharers: int = 1) -> None:
    """Raise ConfigError if `max_bytes` bytes hold fewer blocks than one short sequence needs on each of the sharers."""
    least = (pool.min_blocks + SPARE_BLOCKS) * pool.page_bytes * num_sharers
    if max_bytes < least:
        on_each = f" on each of {num_sharers} ranks" if num_sharers > 1 else ""
        raise ConfigError(
            f"max_memory is {max_bytes} bytes, one sequence needs at least {pool.min_blocks + SPARE_BLOCKS} blocks of "
            f"{pool.page_bytes} bytes{on_each}, which are {least} bytes; raise max_memory",
            option="max_memory", needed=least, given=max_bytes,
        )  # fmt: skip
