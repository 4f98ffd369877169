"""KVCacheManager compared with a simple model: contents and references of each block, and longest prefixes."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import DataObject, data, integers, lists, sampled_from

from chairlift.core.block_hash import BlockHash, extend_block_hashes
from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import CacheConfig
from chairlift.engine.kv.block_table import BlockTable
from chairlift.engine.kv.free_block_list import NULL_BLOCK
from chairlift.engine.kv.kv_cache_manager import KVCacheManager, PrefixHit
from support_shares import FULL

ROOT = b"root"
Name = tuple[int, tuple[int, ...]]
"""The content of a block hash: the layer group and the tokens up to the end of the block."""


@dataclass
class ModelSequence:
    """A sequence: its tokens, its block table, and the blocks that it holds in the model."""

    tokens: list[int]
    table: BlockTable
    computed: int
    held: list[dict[int, int]]
    published: int
    hashes: list[BlockHash] = field(default_factory=list)


class CacheAgainstAModel(RuleBasedStateMachine):
    """Random operations on both; there are only two token ids, so that prefixes are often equal."""

    @initialize(
        size=sampled_from([1, 2, 3]), num_blocks=integers(4, 30),
        windows=sampled_from([(None,), (3,), (None, 4), (None, 2, 5), (2, 7)]),
    )  # fmt: skip
    def begin(self, size: int, num_blocks: int, windows: tuple[int | None, ...]) -> None:
        self.size, self.windows = size, windows
        self.cache = KVCacheManager(CacheConfig(num_blocks=num_blocks, block_size=size, windows=windows))
        self.fresh, self.order = list(range(num_blocks)), list[int]()
        self.references = dict.fromkeys(range(num_blocks), 0)
        self.names: dict[Name, int] = {}
        self.sequences: list[ModelSequence] = []

    # -- the model ---------------------------------------------------------------------------------------------------

    def first_needed(self, group: int, num_tokens: int) -> int:
        """Return the first block with a position that a token at num_tokens or later attends to."""
        window = self.windows[group]
        return 0 if window is None else max(0, num_tokens - window + 1) // self.size

    def name(self, group: int, tokens: list[int], index: int) -> Name:
        return group, tuple(tokens[: (index + 1) * self.size])

    def longest_prefix(self, tokens: list[int]) -> int:
        for length in reversed(range((len(tokens) - 1) // self.size + 1)):
            needed = [
                self.name(group, tokens, index)
                for group in range(len(self.windows))
                for index in range(self.first_needed(group, length * self.size), length)
            ]
            if all(name in self.names for name in needed):
                return length
        raise AssertionError("the empty prefix is always cached")

    def record_allocated(self, blocks: list[int]) -> None:
        named = {*self.names.values()}
        num_free = next((index for index, block in enumerate(self.order) if block in named), len(self.order))
        order = self.order[:num_free] + self.fresh + self.order[num_free:]
        assert blocks == order[: len(blocks)], "blocks were not taken in the order of eviction"
        self.fresh = [block for block in self.fresh if block not in blocks]
        self.order = [block for block in self.order if block not in blocks]
        self.names = {name: block for name, block in self.names.items() if block not in blocks}
        self.references.update(dict.fromkeys(blocks, 1))

    def record_freed(self, block: int) -> None:
        self.references[block] -= 1
        if not self.references[block]:
            self.order.insert(len(self.order) if block in self.names.values() else 0, block)

    # -- rules -------------------------------------------------------------------------------------------------------

    def hashes_of(self, tokens: list[int]) -> list[BlockHash]:
        hashes: list[BlockHash] = []
        extend_block_hashes(hashes, ROOT, tokens, self.size)
        return hashes

    def check_hit(self, hit: PrefixHit, tokens: list[int]) -> None:
        length = self.longest_prefix(tokens)
        assert hit.num_tokens == length * self.size < len(tokens)
        for group, blocks in enumerate(hit.blocks):
            first = self.first_needed(group, hit.num_tokens)
            expected = [self.names[self.name(group, tokens, index)] for index in range(min(first, length), length)]
            assert list(blocks) == [NULL_BLOCK] * min(first, length) + expected
        shared = [block for blocks in hit.blocks for block in blocks if block != NULL_BLOCK]
        assert hit.num_shared == len(shared)
        assert hit.num_reactivated == sum(1 for block in shared if not self.references[block])

    @rule(tokens=lists(integers(0, 1), min_size=1, max_size=14), choice=data())
    def allocate(self, tokens: list[int], choice: DataObject) -> None:
        hashes = self.hashes_of(tokens)
        hit = self.cache.match(hashes, len(tokens))
        self.check_hit(hit, tokens)
        num_tokens = choice.draw(integers(hit.num_tokens + 1, len(tokens)))
        new = sum(-(-num_tokens // self.size) - len(blocks) for blocks in hit.blocks)
        if new + hit.num_reactivated > len(self.fresh) + len(self.order):
            with pytest.raises(OutOfBlocks):
                self.cache.allocate_table(hit, num_tokens, hashes)
            return
        table = self.cache.allocate_table(hit, num_tokens, hashes)
        sequence = ModelSequence(
            tokens, table, hit.num_tokens, [{} for _ in self.windows], hit.num_tokens // self.size, hashes
        )
        for group, blocks in enumerate(hit.blocks):
            for index, block in enumerate(blocks):
                if block != NULL_BLOCK:
                    if not self.references[block]:
                        self.order.remove(block)
                    self.references[block] += 1
                    sequence.held[group][index] = block
        new_blocks = []
        for group in range(len(self.windows)):
            for index in range(len(hit.blocks[group]), -(-num_tokens // self.size)):
                sequence.held[group][index] = table.groups[group][index]
                new_blocks.append(table.groups[group][index])
        self.record_allocated(new_blocks)
        self.sequences.append(sequence)

    @precondition(lambda self: self.sequences)
    @rule(choice=data(), more_tokens=lists(integers(0, 1), max_size=5))
    def grow(self, choice: DataObject, more_tokens: list[int]) -> None:
        sequence = choice.draw(sampled_from(self.sequences))
        sequence.tokens += more_tokens
        sequence.hashes = self.hashes_of(sequence.tokens)
        num_blocks = -(-len(sequence.tokens) // self.size)
        missing = sum(max(0, num_blocks - len(blocks)) for blocks in sequence.table.groups)
        if missing > len(self.fresh) + len(self.order):
            with pytest.raises(OutOfBlocks):
                self.cache.reserve(sequence.table, len(sequence.tokens))
            return
        new = self.cache.reserve(sequence.table, len(sequence.tokens))
        assert len(new) == missing
        self.record_allocated([block for _, _, block in new])
        for group, index, block in new:
            assert index not in sequence.held[group]
            sequence.held[group][index] = block

    @precondition(lambda self: self.sequences)
    @rule(choice=data())
    def publish(self, choice: DataObject) -> None:
        sequence = choice.draw(sampled_from(self.sequences))
        most = min(len(sequence.tokens), sequence.table.capacity)
        sequence.computed = choice.draw(integers(min(sequence.computed, most), most))
        self.cache.publish(sequence.table, sequence.hashes, sequence.computed)
        full = sequence.computed // self.size
        for index in range(sequence.published, full):
            for group, held in enumerate(sequence.held):
                block, name = held.get(index), self.name(group, sequence.tokens, index)
                if block is not None and name not in self.names and block not in self.names.values():
                    self.names[name] = block
        sequence.published = max(sequence.published, full)
        for group, held in enumerate(sequence.held):
            for index in sorted(held):
                if index < self.first_needed(group, sequence.computed):
                    self.record_freed(held.pop(index))

    @precondition(lambda self: self.sequences)
    @rule(choice=data())
    def release(self, choice: DataObject) -> None:
        sequence = choice.draw(sampled_from(self.sequences))
        self.sequences.remove(sequence)
        self.cache.release(sequence.table, sequence.hashes)
        tail_first = sorted(
            ((-index, group) for group, held in enumerate(sequence.held) for index in held), key=lambda item: item
        )
        for index, group in tail_first:
            self.record_freed(sequence.held[group][-index])
        with pytest.raises(AssertionError, match="released twice"):
            self.cache.release(sequence.table, sequence.hashes)

    @rule()
    def flush(self) -> None:
        cached = {name for name, block in self.names.items() if not self.references[block]}
        assert self.cache.evict_all() == len(cached)
        self.names = {name: block for name, block in self.names.items() if name not in cached}

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert self.cache.check_integrity() == []
        assert list(self.cache.pool._free_list) == self.order and list(self.cache.pool._fresh) == self.fresh
        for sequence in self.sequences:
            held = [(group, index, block) for group, held in enumerate(sequence.held) for index, block in held.items()]
            assert sorted(sequence.table.held()) == sorted(held)
        for name in self.cache._pending:
            assert any(name in sequence.hashes[sequence.published :] for sequence in self.sequences), (
                "a pending block that no sequence computes"
            )


TestCacheAgainstAModel = CacheAgainstAModel.TestCase
TestCacheAgainstAModel.settings = settings(max_examples=2000 if FULL else 60, stateful_step_count=40)
