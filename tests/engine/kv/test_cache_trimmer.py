"""CacheTrimmer: memory that the last minute did not need is returned, and prefixes keep their part."""

from chairlift.engine.kv.block_pool import BlockPool
from chairlift.engine.kv.cache_trimmer import WINDOW_SECONDS, CacheTrimmer


def test_what_was_held_two_windows_ago_is_kept_and_then_only_the_cached_part() -> None:
    pool = BlockPool(1000, max_cached=10)
    trimmer, now = CacheTrimmer(pool, 10), 50.0
    assert trimmer.trim(now) is None and trimmer.seconds_to_trim is None
    blocks = pool.allocate(500)
    assert trimmer.trim(now + 1) is None
    pool.free(blocks)
    assert trimmer.seconds_to_trim == WINDOW_SECONDS
    results = [trimmer.trim(now := now + WINDOW_SECONDS) for _ in range(4)]
    assert results == [None, None, [], None]
    assert pool.num_used == 10 and trimmer.seconds_to_trim is None


def test_nothing_is_trimmed_within_a_window_or_for_a_few_blocks() -> None:
    pool = BlockPool(1000, max_cached=100)
    trimmer = CacheTrimmer(pool, 100)
    pool.free(pool.allocate(110))
    assert [trimmer.trim(float(now)) for now in range(0, 300, 7)] == [None] * 43
    assert pool.num_used == 110 and trimmer.seconds_to_trim is None


def test_a_held_block_at_the_top_keeps_the_blocks_below_it() -> None:
    pool = BlockPool(100, max_cached=0)
    trimmer = CacheTrimmer(pool, 0)
    blocks = pool.allocate(50)
    pool.free(blocks[:-1])
    for now in range(0, 300, 60):
        assert trimmer.trim(float(now)) is None
    pool.free(blocks[-1:])
    assert [trimmer.trim(float(now)) for now in range(300, 600, 60)].count([]) == 2 and pool.num_used == 0


def test_blocks_that_are_held_only_within_a_step_count() -> None:
    pool = BlockPool(1000, max_cached=10)
    trimmer = CacheTrimmer(pool, 10)
    for now in range(0, 600, 5):
        blocks = pool.allocate(500)
        trimmer.count_held()
        pool.free(blocks)
        assert trimmer.trim(float(now)) is None
