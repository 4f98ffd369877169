"""BlockPool compared with a list, a dict and a counter: same blocks, same order of eviction, same keys."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import DataObject, data, integers, sampled_from

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.kv.block_pool import BlockKey, BlockPool
from support_shares import FULL

TOTAL = 6
NAMES: list[BlockKey] = [(group, bytes([number])) for group in range(2) for number in range(3)]


class PoolAgainstAModel(RuleBasedStateMachine):
    """The model: `fresh` and `free_list` in order, `references` of each block, and `names`, the block of each key."""

    @initialize(max_cached=sampled_from([None, 0, 1, 3]))
    def create(self, max_cached: int | None) -> None:
        self.pool = BlockPool(TOTAL, max_cached)
        self.max_cached = TOTAL if max_cached is None else max_cached
        self.fresh, self.free_list = list(range(TOTAL)), list[int]()
        self.references: Counter[int] = Counter()
        self.names: dict[BlockKey, int] = {}
        self.limit, self.withheld = TOTAL, set[int]()

    @rule(limit=integers(1, TOTAL))
    def set_limit(self, limit: int) -> None:
        self.pool.set_limit(limit)
        self.withheld |= {block for block in self.fresh + self.free_list if block >= limit}
        self.fresh, self.free_list = (
            [block for block in each if block < limit] for each in (self.fresh, self.free_list)
        )
        for block in reversed(range(self.limit, limit)):
            if block in self.withheld:
                self.withheld.remove(block)
                self.free_list.insert(0, block)
        self.names = {name: block for name, block in self.names.items() if block not in self.withheld}
        self.limit = limit

    @rule(count=integers(0, TOTAL + 1))
    def allocate(self, count: int) -> None:
        if count > (available := len(self.fresh) + len(self.free_list)):
            with pytest.raises(OutOfBlocks, match=f"{count} blocks are needed, {available} of {TOTAL} are free"):
                self.pool.allocate(count)
            return
        expected = [self.take() for _ in range(count)]
        assert self.pool.allocate(count) == expected
        self.references.update(expected)

    def take(self) -> int:
        cached = [block for block in self.free_list if block in self.names.values()]
        if self.fresh and (self.free_list[:1] == cached[:1]) and (not cached or len(cached) < self.max_cached):
            return self.fresh.pop(0)
        block = self.free_list.pop(0)
        self.names = {name: named for name, named in self.names.items() if named != block}
        return block

    @rule(num_kept=integers(0, TOTAL))
    def trim(self, num_kept: int) -> None:
        num_used = self.fresh[0] if self.fresh else TOTAL
        held = [block + 1 for block in range(num_used) if self.references[block]]
        start = min(num_used, max([num_kept, *held])) if self.limit == TOTAL else num_used
        if start == num_used:
            assert self.pool.trim(num_kept) == []
            return
        cached = [block for block in self.free_list if block in self.names.values()]
        num_places = sum(1 for block in range(start) if not self.references[block])
        evicted = cached[: max(0, len(cached) - num_places)]
        moves = dict(self.pool.trim(num_kept))
        assert set(moves) == {block for block in cached if block >= start and block not in evicted}
        free = {block for block in range(start) if not self.references[block]} - {*cached} | {*evicted}
        assert set(moves.values()) <= free and len(set(moves.values())) == len(moves)
        assert self.pool.num_used == start
        self.names = {name: moves.get(block, block) for name, block in self.names.items() if block not in evicted}
        kept = [moves.get(block, block) for block in cached if block not in evicted]
        assert [block for block in self.pool._free_list if block in kept] == kept, "the order of eviction stays"
        self.free_list = list(self.pool._free_list)
        self.fresh = [*range(start, num_used), *self.fresh]

    @precondition(lambda self: self.names)
    @rule(choice=data())
    def share(self, choice: DataObject) -> None:
        name = choice.draw(sampled_from(sorted(self.names)))
        block = self.pool.lookup(name)
        assert block == self.names[name]
        self.pool.add_reference(block)
        if not self.references[block]:
            self.free_list.remove(block)
        self.references[block] += 1

    @precondition(lambda self: +self.references)
    @rule(choice=data())
    def free(self, choice: DataObject) -> None:
        block = choice.draw(sampled_from(sorted(+self.references)))
        self.pool.free([block])
        self.references[block] -= 1
        if not self.references[block]:
            if block >= self.limit:
                self.withheld.add(block)
                self.names = {name: held for name, held in self.names.items() if held != block}
                return
            has_name = block in self.names.values()
            self.free_list.insert(len(self.free_list) if has_name else 0, block)

    @precondition(lambda self: +self.references)
    @rule(choice=data(), name=sampled_from(NAMES))
    def publish(self, choice: DataObject, name: BlockKey) -> None:
        block = choice.draw(sampled_from(sorted(+self.references)))
        self.pool.publish(block, name)
        if name not in self.names and block not in self.names.values():
            self.names[name] = block

    @rule()
    def forget_cached(self) -> None:
        cached = {name for name, block in self.names.items() if not self.references[block]}
        assert self.pool.evict_all_cached() == len(cached)
        self.names = {name: block for name, block in self.names.items() if name not in cached}

    @invariant()
    def the_same(self) -> None:
        assert self.pool.check(self.references.elements()) == []
        assert list(self.pool._free_list) == self.free_list and list(self.pool._fresh) == self.fresh
        assert {name: block for name in NAMES if (block := self.pool.lookup(name)) is not None} == self.names
        counts = self.pool.counts()
        cached = sum(1 for block in self.names.values() if not self.references[block])
        assert (counts.cached, counts.held) == (cached, len(+self.references))
        assert counts.free + counts.cached + counts.held + counts.withheld == counts.total == TOTAL
        assert counts.withheld == len(self.withheld) and self.pool.usable == TOTAL - len(self.withheld)
        assert (self.pool.held, self.pool.cached, self.pool.limit) == (counts.held, counts.cached, self.limit)
        assert all(self.pool.references(block) == self.references[block] for block in range(TOTAL))


TestPoolAgainstAModel = PoolAgainstAModel.TestCase
TestPoolAgainstAModel.settings = settings(max_examples=1000 if FULL else 40, stateful_step_count=50)
