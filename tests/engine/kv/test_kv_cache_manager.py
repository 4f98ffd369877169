"""KVCacheManager: hits that leave a token, all-or-nothing tables, windows, and blocks that others wait for."""

import pytest

from chairlift.core.block_hash import BlockHash, extend_block_hashes
from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import CacheConfig
from chairlift.engine.kv.block_table import BlockTable
from chairlift.engine.kv.free_block_list import NULL_BLOCK, BlockId
from chairlift.engine.kv.kv_cache_manager import KVCacheManager, PrefixHit
from chairlift.engine.kv.state_checkpoint_pool import NO_CHECKPOINT
from support_shares import for_each

SIZE = 4


def make(num_blocks: int = 12, windows: tuple[int | None, ...] = (None,), caching: bool = True) -> KVCacheManager:
    config = CacheConfig(num_blocks=num_blocks, block_size=SIZE, windows=windows, enable_prefix_caching=caching)
    return KVCacheManager(config)


def named(tokens: list[int], root: bytes = b"root") -> list[BlockHash]:
    hashes: list[BlockHash] = []
    extend_block_hashes(hashes, root, tokens, SIZE)
    return hashes


def compute(cache: KVCacheManager, tokens: list[int]) -> BlockTable:
    """Allocate a table, compute everything and publish it."""
    hashes = named(tokens)
    table = cache.allocate_table(cache.match(hashes, len(tokens)), len(tokens), hashes)
    cache.publish(table, hashes, len(tokens))
    return table


def left(cache: KVCacheManager, tokens: list[int]) -> None:
    """Put a prefix into the cache."""
    cache.release(compute(cache, tokens), named(tokens))


TWELVE = list(range(12))


def test_a_full_hit_leaves_one_block_to_compute() -> None:
    """Pitfall 1: an exact prompt, a whole number of blocks, still computes at least one token."""
    cache = make()
    left(cache, TWELVE)
    assert cache.match(named(TWELVE), 12).num_tokens == 8
    assert cache.match(named(TWELVE), 13).num_tokens == 12


def test_with_blocks_of_one_token_a_full_hit_leaves_exactly_one() -> None:
    """Pitfall 1."""
    cache = KVCacheManager(CacheConfig(num_blocks=9, block_size=1))
    hashes: list[BlockHash] = []
    extend_block_hashes(hashes, b"", [1, 2, 3], 1)
    table = cache.allocate_table(cache.match(hashes, 3), 3, hashes)
    cache.publish(table, hashes, 3)
    assert cache.match(hashes, 3).num_tokens == 2


def test_matching_changes_nothing() -> None:
    cache = make()
    left(cache, TWELVE)
    before = (cache.counts(), list(cache.pool._free_list))
    assert cache.match(named(TWELVE), 12) == cache.match(named(TWELVE), 12)
    assert (cache.counts(), list(cache.pool._free_list)) == before


def test_a_shared_block_is_held_twice_and_freed_once() -> None:
    cache = make()
    first, second = compute(cache, TWELVE), compute(cache, TWELVE)
    assert first.groups[0][:2] == second.groups[0][:2] and first.groups[0][2] != second.groups[0][2]
    cache.release(first, named(TWELVE))
    assert [cache.pool.references(block) for block in second.groups[0]] == [1, 1, 1]
    cache.release(second, named(TWELVE))
    assert cache.counts().held == 0 and cache.check_integrity() == []


def test_a_prefix_is_evicted_from_its_tail() -> None:
    """Pitfall 13: after one eviction the rest of the prefix is still a hit."""
    cache = make(num_blocks=3)
    left(cache, TWELVE)
    cache.pool.allocate(1)
    assert cache.match(named(TWELVE), 13).num_tokens == 8
    cache.pool.allocate(1)
    assert cache.match(named(TWELVE), 13).num_tokens == 4


def test_blocks_that_are_being_computed_are_no_hit_but_pending() -> None:
    """Pitfall 3: not before they are published."""
    cache = make()
    hashes = named(TWELVE)
    table = cache.allocate_table(cache.match(hashes, 12), 12, hashes)
    hit = cache.match(hashes, 12)
    assert hit.num_tokens == 0 and hit.pending == hashes[0] and cache.is_pending(hashes[0])
    cache.publish(table, hashes, 7)
    hit = cache.match(hashes, 12)
    assert hit.num_tokens == 4 and hit.pending == hashes[1]
    cache.publish(table, hashes, 12)
    assert cache.match(hashes, 12).pending is None and not cache._pending


def test_a_block_that_must_be_computed_anyway_is_not_awaited() -> None:
    cache = make()
    hashes = named(TWELVE[:4])
    cache.allocate_table(cache.match(hashes, 4), 4, hashes)
    assert cache.match(hashes, 4).pending is None


def test_pending_blocks_of_an_owner_that_leaves_are_pending_no_more() -> None:
    cache = make()
    hashes = named(TWELVE)
    table = cache.allocate_table(cache.match(hashes, 12), 12, hashes)
    cache.publish(table, hashes, 4)
    cache.release(table, hashes)
    assert not any(cache.is_pending(name) for name in hashes) and cache.match(hashes, 12).num_tokens == 4


def test_tokens_of_an_unfinished_block_are_never_published() -> None:
    cache = make()
    hashes = named(TWELVE)
    table = cache.allocate_table(cache.match(hashes, 12), 12, hashes)
    cache.publish(table, hashes, 11)
    assert cache.match(hashes, 13).num_tokens == 8


def test_trimmed_blocks_are_free_and_allocated_anew() -> None:
    cache = KVCacheManager(CacheConfig(num_blocks=16, block_size=4, windows=(None, 8)))
    table = cache.allocate_table(cache.no_hit, 5, ())
    cache.reserve(table, 13)
    cache.trim(table, 6)
    assert [len(blocks) for blocks in table.groups] == [2, 2]
    assert (table.num_held, table.capacity, cache.check_integrity()) == (4, 8, [])
    assert [(group, index) for group, index, _ in cache.reserve(table, 9)] == [(0, 2), (1, 2)]
    cache.trim(table, 9)
    assert table.num_held == 6


def test_opening_is_all_or_nothing() -> None:
    cache = make(num_blocks=4)
    left(cache, TWELVE)
    before = (cache.counts(), list(cache.pool._free_list))
    hashes = named([*TWELVE, *range(50, 60)])
    with pytest.raises(OutOfBlocks, match="6 blocks are needed, 4 of 4 are free"):
        cache.allocate_table(cache.match(hashes, 22), 22, hashes)
    assert (cache.counts(), list(cache.pool._free_list)) == before and cache.check_integrity() == []


def test_a_pool_that_refuses_although_it_has_blocks_leaves_no_open_table(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make()
    left(cache, TWELVE)

    def refuse(count: int) -> list[BlockId]:
        raise OutOfBlocks(free=0, total=12, needed=count)

    monkeypatch.setattr(cache.pool, "allocate", refuse)
    hashes = named(TWELVE)
    with pytest.raises(OutOfBlocks):
        cache.allocate_table(cache.match(hashes, 12), 12, hashes)
    assert cache.check_integrity() == [] and cache.counts().held == 0 and not cache._pending
    assert cache.match(hashes, 12).num_tokens == 8


def test_a_revived_block_counts_among_those_that_are_needed() -> None:
    cache = make(num_blocks=3)
    left(cache, TWELVE)
    hit = cache.match(named(TWELVE), 12)
    assert (hit.num_shared, hit.num_reactivated) == (2, 2)
    assert cache.blocks_needed(hit, 12, lookahead=4) == 3


def test_a_block_that_another_holds_saves_room() -> None:
    cache = make()
    compute(cache, TWELVE)
    hit = cache.match(named(TWELVE), 12)
    assert (hit.num_shared, hit.num_reactivated) == (2, 0)
    assert cache.blocks_needed(hit, 12, lookahead=4) == 1


def test_shared_blocks_of_a_window_save_no_room() -> None:
    """Shared blocks are freed while new ones are allocated, and the other table keeps them."""
    cache = make(num_blocks=40, windows=(6,))
    long = list(range(40))
    other = named(long)
    table = cache.allocate_table(cache.match(other, 40), 12, other)
    cache.publish(table, other, 12)
    hit = cache.match(other, 40)
    assert hit.num_shared == 2 and hit.num_reactivated == 0
    peak = cache.peak_blocks(40, 4)
    assert cache.blocks_needed(hit, 40, 4) == peak
    second = cache.allocate_table(hit, 13, other)
    assert cache.blocks_still_needed(second, 40, 4) == peak - 1


def test_releasing_twice_is_a_bug_of_ours() -> None:
    cache = make()
    table = compute(cache, TWELVE)
    cache.release(table, named(TWELVE))
    with pytest.raises(AssertionError, match="released twice"):
        cache.release(table, named(TWELVE))


def test_blocks_behind_the_window_are_given_back() -> None:
    """Pitfall 14."""
    cache = make(windows=(None, 5))
    hashes = named(TWELVE)
    table = cache.allocate_table(cache.match(hashes, 12), 12, hashes)
    cache.publish(table, hashes, 7)
    assert table.groups[1][0] != NULL_BLOCK  # position 7 sees position 3
    cache.publish(table, hashes, 8)
    assert table.groups[1][0] == NULL_BLOCK and table.groups[0][0] != NULL_BLOCK
    assert cache.window_blocks_freed == 1 and table.num_held == 5 and cache.check_integrity() == []


def test_a_hit_of_a_window_group_needs_the_last_window_only() -> None:
    """Pitfall 14: the blocks before it are freed, and none is needed."""
    cache = make(windows=(None, 5))
    table = compute(cache, list(range(20)))
    assert table.groups[1] == [NULL_BLOCK] * 4 + table.groups[1][4:]
    cache.release(table, named(list(range(20))))
    oldest = cache.pool.lookup((1, named(TWELVE)[0]))
    assert oldest is not None
    cache.pool._evict(oldest)
    hit = cache.match(named(list(range(20))), 21)
    assert hit.num_tokens == 20 and hit.blocks[1][:4] == (NULL_BLOCK,) * 4 and len(hit.blocks[0]) == 5


def test_a_window_group_that_lost_its_last_window_shortens_the_hit_of_all() -> None:
    """Pitfall 14."""
    cache = make(windows=(None, 5))
    left(cache, TWELVE)
    last = cache.pool.lookup((1, named(TWELVE)[2]))
    assert last is not None
    cache.pool._evict(last)
    hit = cache.match(named(TWELVE), 13)
    assert hit.num_tokens == 8 and [len(blocks) for blocks in hit.blocks] == [2, 2]


def test_without_prefix_caching_nothing_is_found_and_nothing_is_pending() -> None:
    cache = make(caching=False)
    hashes = named(TWELVE)
    cache.allocate_table(cache.match([], 12), 12, [])
    assert cache.match(hashes, 12) == PrefixHit(0, ((),)) and not cache._pending


def test_what_others_hold_too_is_no_work_to_lose() -> None:
    cache = make()
    first = compute(cache, TWELVE)
    assert cache.num_unshared_tokens(first, 12) == 12
    compute(cache, [*TWELVE[:8], 99])
    assert cache.num_unshared_tokens(first, 12) == 4


def test_flushing_evicts_blocks_without_references() -> None:
    cache = make()
    left(cache, TWELVE)
    held = compute(cache, [*TWELVE[:4], 50, 51, 52, 53])
    assert cache.evict_all() == 2
    assert cache.match(named(TWELVE), 13).num_tokens == 4 and cache.check_integrity() == []
    cache.release(held, named([*TWELVE[:4], 50, 51, 52, 53]))


def test_integrity_check_reports_a_table_that_miscounts() -> None:
    cache = make()
    compute(cache, TWELVE).num_held = 2
    assert cache.check_integrity() == ["a table counts 2 blocks and holds 3"]


def test_integrity_check_reports_a_pending_block_without_an_owner() -> None:
    cache = make()
    hashes = named(TWELVE)
    table = cache.allocate_table(cache.match(hashes, 12), 12, hashes)
    cache.release(table, hashes)
    cache._pending[hashes[0]] = table
    assert cache.check_integrity() == [f"pending block {hashes[0].hex()[:8]} has no owner"]


def test_a_cache_that_forgets_shares_neither_held_nor_pending_contents_and_goes_on() -> None:
    cache = make()
    left(cache, [7, 7, 7, 7])
    held = compute(cache, TWELVE)
    cache.forget_all()
    assert cache.match(named([7, 7, 7, 7, 7]), 5).num_tokens == 0
    assert cache.match(named(TWELVE), 13).num_tokens == 0
    again = compute(cache, TWELVE)
    assert not set(again.groups[0]) & set(held.groups[0])
    assert cache.match(named(TWELVE), 13).num_tokens == 12
    for table in (held, again):
        cache.release(table, named(TWELVE))
    assert cache.counts().held == 0 and cache.check_integrity() == []


# -- layers that keep a state ------------------------------------------------------------------------------------------


def make_with_states(windows: tuple[int | None, ...] = (None,), num_checkpoints: int = 4) -> KVCacheManager:
    return KVCacheManager(CacheConfig(
        num_blocks=40, block_size=SIZE, windows=windows, has_state=True, num_state_checkpoints=num_checkpoints,
    ))  # fmt: skip


def save(cache: KVCacheManager, tokens: list[int]) -> int:
    """Save a state at the end of the last full block of the tokens; returns its checkpoint, which is cached."""
    checkpoint = cache.checkpoints.allocate()
    assert checkpoint is not None and cache.checkpoints.publish(checkpoint, named(tokens)[-1])
    cache.checkpoints.free(checkpoint)
    return checkpoint


@for_each("windows", [(None,), (None, 6), (5,), (3, 9), ()])
def test_a_hit_with_a_state_ends_where_one_is_saved(windows: tuple[int | None, ...]) -> None:
    cache = make_with_states(windows)
    tokens = list(range(30))
    left(cache, tokens)
    assert cache.match(named(tokens), 30).num_tokens == 0
    first, second = save(cache, tokens[:8]), save(cache, tokens[:20])
    ends = {length: cache.match(named(tokens[:length]), length) for length in (8, 9, 20, 21, 30)}
    assert [hit.num_tokens for hit in ends.values()] == [0, 8, 8, 20, 20]
    assert [hit.checkpoint for hit in ends.values()] == [NO_CHECKPOINT, first, first, second, second]
    for hit in ends.values():
        assert hit.tail == () and len(hit.blocks) == len(windows)
        assert all(len(blocks) == hit.num_tokens // SIZE for blocks in hit.blocks)
        assert cache.prefix_blocks(named(tokens), hit.num_tokens + 1, 0) == hit.num_tokens // SIZE


def test_a_state_without_its_blocks_is_no_hit() -> None:
    cache = make_with_states()
    left(cache, TWELVE)
    save(cache, TWELVE[:8])
    save(cache, TWELVE)
    cache.pool.evict_all_cached()
    left(cache, TWELVE[:8])
    assert cache.match(named(TWELVE), 13).num_tokens == 8


def test_behind_a_window_a_shorter_prefix_with_a_state_may_lack_blocks() -> None:
    """The blocks of its own last window are gone, those of the longer prefix are there."""
    cache = make_with_states((5,))
    tokens = list(range(24))
    left(cache, tokens)
    save(cache, tokens[:8])
    gone = cache.pool.lookup((0, named(tokens)[1]))
    assert gone is not None and cache.match(named(tokens), 25).num_tokens == 8
    cache.pool._evict(gone)
    assert cache.match(named(tokens), 25).num_tokens == 0
    save(cache, tokens[:20])
    assert cache.match(named(tokens), 25).num_tokens == 20


def test_only_a_state_that_will_be_saved_is_worth_a_wait() -> None:
    cache = make_with_states()
    hashes = named(TWELVE)
    table = cache.allocate_table(cache.match(hashes, 12), 12, hashes)
    assert cache.match(hashes, 12).pending is None and cache.match(hashes, 12).num_shared_tokens == 8
    cache.release(table, hashes)
    table = cache.allocate_table(cache.match(hashes, 12), 12, hashes, (4, 8))
    hit = cache.match(hashes, 12)
    assert hit.pending == hashes[1] and cache.is_pending(hashes[1]) and not cache.is_pending(hashes[2])
    cache.publish(table, hashes, 5)
    assert not cache.is_pending(hashes[0]) and cache.is_pending(hashes[1])
    cache.publish(table, hashes, 8)  # without a save
    assert cache.match(hashes, 12).pending is None and cache.match(hashes, 12).num_shared_tokens == 8
    cache.release(table, hashes)
    assert cache.check_integrity() == []


def test_a_table_holds_the_state_of_its_hit_until_it_is_taken_or_released() -> None:
    cache = make_with_states(num_checkpoints=1)
    left(cache, TWELVE)
    checkpoint, hashes = save(cache, TWELVE[:8]), named(TWELVE)
    first = cache.allocate_table(cache.match(hashes, 12), 12, hashes)
    second = cache.allocate_table(cache.match(hashes, 12), 12, hashes)
    assert cache.checkpoints.allocate() is None and cache.check_integrity() == []
    cache.release(first, hashes)
    assert cache.take_checkpoint(second) == checkpoint and cache.take_checkpoint(second) == NO_CHECKPOINT
    assert cache.check_integrity([checkpoint]) == []
    assert cache.check_integrity() == ["checkpoint 0 has 1 references, 0 are known"]
    cache.checkpoints.free(checkpoint)
    cache.release(second, hashes)
    assert cache.check_integrity() == [] and cache.evict_all() == 3 and cache.checkpoints.num_free == 1


def test_a_table_that_finds_no_blocks_holds_no_state() -> None:
    cache = make_with_states()
    left(cache, TWELVE)
    save(cache, TWELVE[:8])
    others = compute(cache, [99] * 4 * 37)
    with pytest.raises(OutOfBlocks):
        cache.allocate_table(cache.match(named(TWELVE), 12), 20, named(TWELVE), (8,))
    assert cache.checkpoints.counts().held == 0 and not cache._pending_checkpoints
    cache.release(others, named([99] * 4 * 37))
    assert cache.check_integrity() == []


def test_a_cache_that_forgets_shares_no_state() -> None:
    cache = make_with_states()
    left(cache, TWELVE)
    save(cache, TWELVE[:8])
    cache.forget_all()
    left(cache, TWELVE)
    assert cache.match(named(TWELVE), 12).num_tokens == 0 and cache.checkpoints.num_free == 4


def test_integrity_check_reports_a_pending_state_without_an_owner() -> None:
    cache = make_with_states()
    hashes = named(TWELVE)
    table = cache.allocate_table(cache.match(hashes, 12), 12, hashes, (8,))
    cache.release(table, hashes)
    cache._pending_checkpoints[hashes[1]] = table
    assert cache.check_integrity() == [f"pending state {hashes[1].hex()[:8]} has no owner"]
