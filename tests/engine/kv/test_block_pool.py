"""BlockPool: three states of a block, and an integrity check. More in properties/test_pool_machine.py."""

import pytest

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.batch_snapshot import CACHED, FREE, HELD, SHARED, WITHHELD
from chairlift.engine.kv.block_pool import BlockCounts, BlockKey, BlockPool

A: BlockKey = (0, b"a")
B: BlockKey = (0, b"b")


def test_a_block_goes_from_free_to_held_to_cached_and_back() -> None:
    pool = BlockPool(3)
    [block] = pool.allocate(1)
    assert pool.counts() == BlockCounts(total=3, free=2, cached=0, held=1)
    pool.publish(block, A)
    pool.free([block])
    assert pool.counts() == BlockCounts(total=3, free=2, cached=1, held=0)
    assert pool.lookup(A) == block
    pool.add_reference(block)
    assert pool.counts() == BlockCounts(total=3, free=2, cached=0, held=1)


def test_the_state_of_every_nth_block() -> None:
    pool = BlockPool(8)
    cached, held, shared = pool.allocate(3)
    pool.publish(cached, A)
    pool.free([cached])
    pool.add_reference(shared)
    pool.set_limit(6)
    states = pool.states(1)
    expected = {cached: CACHED, held: HELD, shared: SHARED, 6: WITHHELD, 7: WITHHELD}
    assert states == [expected.get(block, FREE) for block in range(8)]
    for stride in (2, 3, 4, 5, 7, 9):
        assert pool.states(stride) == states[::stride], stride


def test_a_held_block_above_the_limit_is_withheld_when_it_is_freed() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    pool.set_limit(2)
    assert pool.states(1) == [HELD] * 4
    pool.free(blocks)
    assert pool.states(1) == [FREE, FREE, WITHHELD, WITHHELD]


def test_taking_too_many_changes_nothing_and_says_all_numbers() -> None:
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(OutOfBlocks, match="5 blocks are needed, 3 of 4 are free"):
        pool.allocate(5)
    assert pool.available == 3 and pool.check([0]) == []


def test_eviction_takes_one_block_at_a_time_the_least_recently_used_first() -> None:
    """Pitfall 13: not all or nothing."""
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    names = [(0, bytes([block])) for block in blocks]
    for block, name in zip(blocks, names, strict=True):
        pool.publish(block, name)
    for block in (1, 0, 2):
        pool.free([block])
    assert pool.allocate(1) == [1]
    assert [pool.lookup(name) for name in names] == [0, None, 2]


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    pool.publish(0, A)
    pool.free([0])
    pool.free([1])
    assert pool.allocate(1) == [1] and pool.lookup(A) == 0


def test_cached_blocks_above_their_number_are_used_again_before_fresh_ones() -> None:
    pool = BlockPool(9, max_cached=2)
    for number in range(5):
        blocks = pool.allocate(2)
        for index, block in enumerate(blocks):
            pool.publish(block, (index, bytes([number])))
        pool.free(reversed(blocks))
    assert pool.num_used == 3 and pool.counts() == BlockCounts(total=9, free=6, cached=3, held=0)
    assert pool.lookup((0, b"\4")) is not None and pool.lookup((1, b"\3")) is None, "the oldest is evicted"
    assert len(pool.allocate(9)) == 9 and pool.num_used == 9, "sequences may hold all blocks"


def test_a_trimmed_block_is_fresh_again() -> None:
    pool = BlockPool(4)
    held, *others = pool.allocate(3)
    pool.publish(others[1], A)
    pool.free(others)
    assert pool.trim(3) == [] and pool.num_used == 3
    assert pool.trim(2) == [(2, 1)] and pool.lookup(A) == 1 and pool.num_used == 2, "its contents move"
    assert pool.trim(0) == [] and pool.num_used == 1 and pool.lookup(A) is None, "a held block stays"
    assert pool.check([held]) == [] and pool.allocate(3) == [1, 2, 3]


def test_the_prompts_that_were_used_last_outlive_a_trim() -> None:
    pool = BlockPool(9)
    blocks = pool.allocate(8)
    for block in blocks:
        pool.publish(block, (0, bytes([block])))
    pool.free([7, 0, 5, 1, 6, 2, 4, 3])
    moves = dict(pool.trim(3))
    assert [pool.lookup((0, bytes([block]))) is not None for block in range(8)] == [
        False, False, True, True, True, False, False, False
    ]  # fmt: skip
    assert sorted(moves) == [3, 4] and sorted(moves.values()) == [0, 1] and pool.check([]) == []
    assert [pool.allocate(1) for _ in range(4)] == [[3], [4], [5], [6]], "and none of them is evicted before fresh ones"


def test_a_name_stays_with_the_first_block_that_has_it() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, A)
    pool.publish(second, A)
    assert pool.lookup(A) == first
    pool.free([second])
    assert pool.counts().cached == 0 and pool.check([first]) == []


def test_a_block_keeps_its_first_name() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.publish(0, A)
    pool.publish(0, B)
    assert pool.lookup(A) == 0 and pool.lookup(B) is None


def test_forgetting_the_cache_leaves_held_blocks_named() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    pool.publish(0, A)
    pool.publish(1, B)
    pool.free([1])
    assert pool.evict_all_cached() == 1
    assert pool.lookup(A) == 0 and pool.lookup(B) is None and pool.check([0]) == []


def test_a_block_without_a_reference_cannot_be_freed_or_published() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="without a reference"):
        pool.free([0])
    with pytest.raises(AssertionError, match="without a reference"):
        pool.publish(0, A)


def test_check_reports_a_leak() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    assert pool.check([]) == ["block 0 has 1 references, tables hold it 0 times"]


def test_check_reports_a_block_in_two_states() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool._free_list.push(0)
    assert pool.check([0]) == ["block 0 is in the free list with 1 references"]


def test_check_reports_a_lost_block() -> None:
    pool = BlockPool(2)
    pool.free(pool.allocate(1))
    pool._free_list.pop()
    assert pool.check([]) == ["block 0 is not in the free list with 0 references"]


def test_check_reports_a_fresh_block_that_is_used() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    pool._fresh = range(2)
    assert "block 0 is fresh with 1 references and the key None" in pool.check([0])


def test_check_reports_keys_that_do_not_match() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    pool.publish(0, A)
    pool._keys[0] = None
    assert pool.check([0]) == ["0 blocks have a key, 1 keys are cached"]


def test_check_reports_a_wrong_count_of_cached_blocks() -> None:
    pool = BlockPool(2)
    pool._num_cached = 1
    assert pool.check([]) == ["0 free blocks have a key, 1 are counted"]


def test_check_reports_a_free_list_that_miscounts() -> None:
    pool = BlockPool(2)
    pool._free_list._count = 1
    assert "the free list counts 1 blocks and holds 0" in pool.check([])


def test_blocks_above_the_limit_are_not_handed_out() -> None:
    pool = BlockPool(6)
    held = pool.allocate(4)
    for block, key in ((held[3], A), (held[2], B)):
        pool.publish(block, key)
    pool.free([held[2]])
    pool.set_limit(2)
    assert pool.counts() == BlockCounts(total=6, free=0, cached=0, held=3, withheld=3), "the cached block is evicted"
    assert pool.lookup(B) is None and pool.lookup(A) == held[3] and pool.check([0, 1, 3]) == []
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)
    pool.free([held[3], held[0]])
    assert pool.lookup(A) is None and pool.allocate(1) == [0]
    pool.set_limit(5)
    assert (pool.available, pool.usable, pool.limit) == (3, 5, 5) and sorted(pool.allocate(3)) == [2, 3, 4]


def test_check_reports_a_withheld_block_below_the_limit() -> None:
    pool = BlockPool(2)
    pool.set_limit(1)
    pool._limit = 2
    assert pool.check([]) == ["block 1 is withheld with 0 references and a limit of 2"]


def test_a_pool_that_forgets_shares_no_block_that_it_has_now() -> None:
    pool = BlockPool(4)
    held, cached = pool.allocate(2)
    pool.publish(held, A)
    pool.publish(cached, B)
    pool.free([cached])
    pool.forget_all()
    assert pool.lookup(A) is None and pool.lookup(B) is None
    assert pool.counts() == BlockCounts(total=4, free=3, cached=0, held=1) and pool.check([held]) == []
    [later] = pool.allocate(1)
    pool.publish(later, A)
    assert pool.lookup(A) == later
    pool.free([held, later])
    assert pool.counts() == BlockCounts(total=4, free=3, cached=1, held=0) and pool.check([]) == []
