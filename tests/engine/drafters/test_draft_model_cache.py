"""DraftModelCache: slots, blocks and what is computed of each sequence."""

from chairlift.core.block_hash import root_hash
from chairlift.engine.drafters.draft_model_cache import CACHED_BYTES, DraftedSequence, DraftModelCache
from chairlift.engine.kv.block_table import BlockTable
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.sequence import Sequence
from support_engine import make_request
from support_shares import for_each

INFO = RunnerInfo(vocab_size=100, max_model_len=100, num_blocks=6, block_size=4)


def sequence_of(*token_ids: int) -> Sequence:
    sequence = Sequence(make_request("a", token_ids), 0, root_hash("m", "", "", ""), 0.0)
    sequence.update_block_hashes(4)
    return sequence


@for_each(
    ("token_ids", "num_computed"),
    [
        ([1, 2, 3], 2),  # no draft can be confirmed: the last token is always computed
        ([1, 2, 7, 8, 9, 5], 5),
        ([1, 2, 7, 8], 3),
        ([1, 2, 7, 4, 9], 3),
        ([1, 2, 5, 8, 9], 2),
    ],
)
def test_confirmed_drafts_stay_computed(token_ids: list[int], num_computed: int) -> None:
    state = DraftedSequence(0, BlockTable(1), 2, written=[7, 8, 9])
    state.confirm(token_ids)
    assert state.num_computed == num_computed and not state.written


@for_each(
    ("new", "most_drafts"),
    [([], 4), ([7, 8, 9, 5], 6), ([7, 8], 6), ([7, 8, 5], 3), ([5], 1)],
)
def test_the_next_drafts_are_more_where_all_were_confirmed_and_fewer_elsewhere(
    new: list[int], most_drafts: int
) -> None:
    state = DraftedSequence(0, BlockTable(1), 2, drafts=(7, 8, 9), draft_position=2)
    state.confirm([1, 2, *new])
    assert state.most_drafts == most_drafts
    assert state.drafts == ((7, 8, 9) if not new else ())
    state.confirm([1, 2, *new])
    assert state.most_drafts == most_drafts


def test_the_sequence_drafted_longest_ago_makes_room() -> None:
    cache = DraftModelCache(INFO, 2, enable_prefix_caching=False)
    first, second, third = (sequence_of(number) for number in (1, 2, 3))
    cache.start(first, ())
    cache.start(second, ())
    cache.start(first, ())
    assert cache.start(third, {third}) is not None
    assert list(cache.states) == [first, third]
    assert cache.start(second, {first, second, third}) is None
    assert cache.check_integrity() == []


def test_blocks_are_taken_from_others_but_not_from_those_kept() -> None:
    cache = DraftModelCache(INFO, 3, enable_prefix_caching=False)
    first, second = sequence_of(1), sequence_of(2)
    old, new = cache.start(first, ()), cache.start(second, ())
    assert old is not None and new is not None
    assert cache.reserve(old, 16, ())
    assert not cache.reserve(new, 16, {first, second})
    assert cache.reserve(new, 16, {second}) and list(cache.states) == [second]
    assert cache.check_integrity() == []


def test_the_runner_gets_each_block_once_and_all_of_a_new_sequence() -> None:
    cache = DraftModelCache(INFO, 1, enable_prefix_caching=False)
    first, second = sequence_of(1), sequence_of(2)
    state = cache.start(first, ())
    assert state is not None
    cache.reserve(state, 5, ())
    released, rows = cache.take_changes([state])
    assert released == () and [row[:3] for row in rows] == [(0, 0, 0), (0, 0, 1)]
    cache.reserve(state, 9, ())
    assert [row[:3] for row in cache.take_changes([state])[1]] == [(0, 0, 2)]
    cache.release(first)
    other = cache.start(second, ())
    assert other is not None and cache.take_changes([other]) == ((0,), [])


def test_published_blocks_are_found_again_unless_prefixes_are_not_shared() -> None:
    for shares in (True, False):
        cache = DraftModelCache(INFO, 1, enable_prefix_caching=shares)
        sequence = sequence_of(*range(9))
        state = cache.start(sequence, ())
        assert state is not None and state.num_computed == 0
        cache.reserve(state, 9, ())
        state.num_computed = 9
        cache.publish(sequence, state)
        cache.release(sequence)
        again = cache.start(sequence, ())
        assert again is not None and again.num_computed == (8 if shares else 0)
        cache.clear()
        assert cache.check_integrity() == [] and not cache.states


def test_cached_blocks_are_bounded_in_bytes() -> None:
    info = RunnerInfo(vocab_size=9, max_model_len=100, num_blocks=100, block_size=4, block_bytes=CACHED_BYTES // 2)
    cache = DraftModelCache(info, 1, enable_prefix_caching=True)
    assert cache._manager.config.max_cached_blocks == 2
