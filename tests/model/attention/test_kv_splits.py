"""choose_kv_splits: few rows fill the GPU, many are not split."""

import math
from itertools import product
from typing import Any

import pytest

from chairlift.model.attention.kv_splits import MAX_SPLIT_KEYS, MAX_SPLITS, KVSplits, choose_kv_splits  # fmt: skip
from support_shares import for_each

H200 = 132
TILE = 64


def choose(**options: Any) -> KVSplits:
    usual = {"num_decodes": 1, "kv_heads": 8, "max_seqlen_k": 1024, "window": None, "tile_keys": TILE,
             "num_processors": H200}  # fmt: skip
    return choose_kv_splits(**usual | options)


@for_each(
    ("num_decodes", "max_seqlen_k", "expected"),
    [
        (1, 64, 1), (1, 128, 1), (1, 129, 2), (1, 1024, 8), (1, 100_000, 64),
        (16, 8192, 5), (64, 1024, 2), (256, 1024, 1), (256, 8192, 2), (256, 131_072, 32),
    ],
)  # fmt: skip
def test_splits_of_an_h200(num_decodes: int, max_seqlen_k: int, expected: int) -> None:
    assert choose(num_decodes=num_decodes, max_seqlen_k=max_seqlen_k).num_splits == expected


def test_a_window_limits_the_splits() -> None:
    assert choose(max_seqlen_k=100_000, window=1024) == choose(max_seqlen_k=1024 + TILE)
    assert choose(max_seqlen_k=1000, window=5000) == choose(max_seqlen_k=1000)


@pytest.mark.parametrize("window", [None, 1, 100, 5000])
def test_the_launched_splits_hold_all_keys_of_every_row(window: int | None) -> None:
    for rows, longest in product((1, 9, 400), (1, 65, 1000, 4097, 200_000)):
        splits = choose(num_decodes=rows, max_seqlen_k=longest, window=window)
        assert 1 <= splits.num_splits <= splits.max_splits <= MAX_SPLITS
        for length in {1, longest // 3 + 1, longest - 1, longest} - {0}:
            first = 0 if window is None else max(0, length - window) // TILE
            tiles = math.ceil(length / TILE) - first
            size = max(math.ceil(tiles / splits.max_splits), splits.min_tiles)
            assert size * splits.num_splits >= tiles


def test_one_long_row_among_many_is_split() -> None:
    splits = choose(num_decodes=1000, max_seqlen_k=10 * MAX_SPLIT_KEYS)
    assert splits.max_splits == 10
