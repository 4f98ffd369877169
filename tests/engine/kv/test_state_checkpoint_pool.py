"""StateCheckpointPool: references, keys and the order of eviction, also compared with a simple model."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import DataObject, data, integers, sampled_from

from chairlift.engine.kv.state_checkpoint_pool import CheckpointCounts, StateCheckpointPool
from support_shares import FULL

KEYS = [bytes([number]) for number in range(5)]


def saved(pool: StateCheckpointPool, key: bytes) -> int:
    """Save and publish a state; returns its checkpoint, which is cached."""
    checkpoint = pool.allocate()
    assert checkpoint is not None and pool.publish(checkpoint, key)
    pool.free(checkpoint)
    return checkpoint


def test_a_saved_state_is_found_until_it_is_evicted_for_another() -> None:
    pool = StateCheckpointPool(2)
    first, second = saved(pool, b"a"), saved(pool, b"b")
    assert (pool.lookup(b"a"), pool.lookup(b"b")) == (first, second)
    assert saved(pool, b"c") == first and pool.lookup(b"a") is None
    assert (pool.num_saves, pool.num_evictions, pool.num_hits) == (3, 1, 0)


def test_a_state_that_was_loaded_is_evicted_after_the_others() -> None:
    pool = StateCheckpointPool(2)
    first, second = saved(pool, b"a"), saved(pool, b"b")
    pool.add_reference(first)
    pool.free(first)
    assert pool.num_hits == 1 and pool.allocate() == second and pool.lookup(b"a") == first


def test_a_held_state_is_never_evicted_and_a_full_pool_gives_none() -> None:
    pool = StateCheckpointPool(2)
    loaded = saved(pool, b"a")
    pool.add_reference(loaded)
    assert pool.allocate() is not None and pool.allocate() is None
    assert pool.num_skipped_saves == 1 and pool.lookup(b"a") == loaded
    assert pool.counts() == CheckpointCounts(total=2, free=0, cached=0, held=2)


def test_a_state_that_is_not_published_is_free_again_without_a_key() -> None:
    pool = StateCheckpointPool(1)
    checkpoint = pool.allocate()
    assert checkpoint is not None
    pool.free(checkpoint)
    assert pool.counts() == CheckpointCounts(total=1, free=1, cached=0, held=0) and pool.check([]) == []


def test_of_two_equal_states_the_first_stays() -> None:
    pool = StateCheckpointPool(2)
    first = saved(pool, b"a")
    second = pool.allocate()
    assert second is not None and not pool.publish(second, b"a") and pool.lookup(b"a") == first
    pool.free(second)
    assert pool.num_free == 1 and pool.num_saves == 1 and pool.check([]) == []


def test_discard_frees_a_cached_state_and_leaves_one_that_is_held() -> None:
    pool = StateCheckpointPool(2)
    first = saved(pool, b"a")
    pool.add_reference(first)
    pool.discard(b"a")
    pool.discard(b"unknown")
    assert pool.lookup(b"a") == first
    pool.free(first)
    pool.discard(b"a")
    assert pool.lookup(b"a") is None and pool.num_free == 2 and pool.num_evictions == 0


def test_a_pool_that_forgets_shares_no_held_state_either() -> None:
    pool = StateCheckpointPool(2)
    first = saved(pool, b"a")
    saved(pool, b"b")
    pool.add_reference(first)
    pool.forget_all()
    assert pool.lookup(b"a") is None and pool.lookup(b"b") is None
    pool.free(first)
    assert pool.num_free == 2 and pool.check([]) == []


def test_a_pool_without_checkpoints_saves_nothing() -> None:
    pool = StateCheckpointPool(0)
    assert pool.allocate() is None and pool.counts() == CheckpointCounts(0, 0, 0, 0) and pool.check([]) == []


def test_the_check_finds_a_lost_reference_and_a_wrong_list() -> None:
    pool = StateCheckpointPool(2)
    checkpoint = pool.allocate()
    assert pool.check([]) == [f"checkpoint {checkpoint} has 1 references, 0 are known"]
    assert pool.check([0, 0]) == ["checkpoint 0 has 1 references, 2 are known"]
    pool._free.append(0)
    assert pool.check([0]) == ["checkpoint 0 with 1 references is (free, cached): (True, False)"]


def test_misuse_is_an_error() -> None:
    pool = StateCheckpointPool(1)
    with pytest.raises(AssertionError, match="published without a reference"):
        pool.publish(0, b"a")
    with pytest.raises(AssertionError, match="freed without a reference"):
        pool.free(0)


class CheckpointPoolAgainstAModel(RuleBasedStateMachine):
    """The model: keys by checkpoint, references, and the cached ones in the order of their last use."""

    @initialize(total=integers(0, 4))
    def create(self, total: int) -> None:
        self.pool = StateCheckpointPool(total)
        self.total = total
        self.references: Counter[int] = Counter()
        self.keys: dict[int, bytes] = {}
        self.order: list[int] = []

    @rule()
    def allocate(self) -> None:
        unused = set(range(self.total)) - set(self.order) - set(self.references)
        checkpoint = self.pool.allocate()
        if unused:
            assert checkpoint in unused
        elif self.order:
            assert checkpoint == self.order.pop(0)
            del self.keys[checkpoint]
        else:
            assert checkpoint is None
            return
        assert checkpoint is not None
        self.references[checkpoint] = 1

    @precondition(lambda self: self.keys)
    @rule(choice=data())
    def load(self, choice: DataObject) -> None:
        checkpoint = choice.draw(sampled_from(sorted(self.keys)))
        assert self.pool.lookup(self.keys[checkpoint]) == checkpoint
        self.pool.add_reference(checkpoint)
        self.references[checkpoint] += 1
        if checkpoint in self.order:
            self.order.remove(checkpoint)

    @precondition(lambda self: set(self.references) - set(self.keys))
    @rule(choice=data(), key=sampled_from(KEYS))
    def publish(self, choice: DataObject, key: bytes) -> None:
        checkpoint = choice.draw(sampled_from(sorted(set(self.references) - set(self.keys))))
        is_new = key not in self.keys.values()
        assert self.pool.publish(checkpoint, key) == is_new
        if is_new:
            self.keys[checkpoint] = key

    @precondition(lambda self: self.references)
    @rule(choice=data())
    def free(self, choice: DataObject) -> None:
        checkpoint = choice.draw(sampled_from(sorted(self.references)))
        self.pool.free(checkpoint)
        self.references[checkpoint] -= 1
        if not self.references[checkpoint]:
            del self.references[checkpoint]
            if checkpoint in self.keys:
                self.order.append(checkpoint)

    @rule(key=sampled_from(KEYS))
    def discard(self, key: bytes) -> None:
        self.pool.discard(key)
        self.forget({checkpoint for checkpoint in self.order if self.keys[checkpoint] == key})

    @rule()
    def evict_all(self) -> None:
        assert self.pool.evict_all_cached() == len(self.order)
        self.forget(set(self.order))

    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        self.forget(set(self.keys))

    def forget(self, checkpoints: set[int]) -> None:
        self.keys = {checkpoint: key for checkpoint, key in self.keys.items() if checkpoint not in checkpoints}
        self.order = [checkpoint for checkpoint in self.order if checkpoint not in checkpoints]

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.check(self.references.elements()) == []
        counts = self.pool.counts()
        assert (counts.cached, counts.held) == (len(self.order), len(self.references))
        assert counts.free + counts.cached + counts.held == counts.total == self.total
        assert list(self.pool._cached) == self.order
        for key in KEYS:
            found = self.pool.lookup(key)
            assert (None if found is None else self.keys[found]) == (key if key in self.keys.values() else None)


TestCheckpointPoolAgainstAModel = CheckpointPoolAgainstAModel.TestCase
TestCheckpointPoolAgainstAModel.settings = settings(max_examples=500 if FULL else 40, stateful_step_count=40)
