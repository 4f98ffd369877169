"""KVSplits, choose_kv_splits: how many programs share the keys of a decode row. Imports no torch."""

import math
from dataclasses import dataclass

MAX_SPLITS = 64
"""Most splits of a row; bounds the memory of partial results."""

MIN_SPLIT_TILES = 2
"""Least tiles of keys of a split; a smaller one costs more to reduce than it saves."""

PROGRAMS_PER_PROCESSOR = 4
"""Programs of a decode kernel that run at once on a multiprocessor."""

MAX_SPLIT_KEYS = 4096
"""Keys of a row beyond which it is split even if the batch alone fills the GPU: one long row must not finish last."""


@dataclass(frozen=True, slots=True)
class KVSplits:
    """The rule by which each decode row is split, and the number of splits to launch.

    A row of n tiles of keys has splits of max(ceil(n / max_splits), min_tiles) tiles.

    Attributes:
        max_splits: most splits of a row.
        min_tiles: least tiles of a split.
        num_splits: splits of the longest row; shorter rows leave some of them empty.
    """

    max_splits: int
    min_tiles: int
    num_splits: int


def choose_kv_splits(
    *, num_decodes: int, kv_heads: int, max_seqlen_k: int, window: int | None, tile_keys: int, num_processors: int
) -> KVSplits:  # fmt: skip
    """Choose the splits of a step's decode rows.

    Args:
        num_decodes: rows with one token.
        kv_heads: KV heads; each has programs of its own.
        max_seqlen_k: longest row, in tokens.
        window: tokens that a row sees; None for all.
        tile_keys: keys of a tile, in tokens.
        num_processors: multiprocessors of the GPU.
    """
    # The first split begins at a multiple of tile_keys, so a window may begin and end within a tile.
    tiles = math.ceil(max_seqlen_k / tile_keys)
    if window is not None:
        tiles = min(tiles, math.ceil(window / tile_keys) + 1)
    # Enough splits that all rows together fill the GPU once.
    wanted = math.ceil(num_processors * PROGRAMS_PER_PROCESSOR / max(1, num_decodes * kv_heads))
    max_splits = min(MAX_SPLITS, max(wanted, math.ceil(tiles * tile_keys / MAX_SPLIT_KEYS), 1))
    return KVSplits(max_splits, MIN_SPLIT_TILES, max(1, min(max_splits, math.ceil(tiles / MIN_SPLIT_TILES))))
