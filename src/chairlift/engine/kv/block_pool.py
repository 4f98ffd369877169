"""BlockPool: counts references to blocks and finds cached blocks by their hash.

Each block is in exactly one state:

    held      references > 0             in a block table; may have a key (with its hash) as well
    cached    references == 0, a key     in the free list; a hit reactivates it, allocate() evicts it
    free      references == 0, no key    in the free list, ahead of the cached ones
"""

from collections.abc import Iterable
from dataclasses import dataclass

from chairlift.core.block_hash import BlockHash
from chairlift.core.errors import OutOfBlocks
from chairlift.engine.kv.free_block_list import BlockId, FreeBlockList

BlockKey = tuple[int, BlockHash]
"""(layer group, chained hash of the tokens up to the block's end)"""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Number of blocks in each state; free + cached + held == total."""

    total: int
    free: int
    cached: int
    held: int


class BlockPool:
    """References and keys of all blocks. Every operation is O(1) a block."""

    def __init__(self, num_blocks: int) -> None:
        self._free_list = FreeBlockList(num_blocks)
        self._references = [0] * num_blocks
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._blocks_by_key: dict[BlockKey, BlockId] = {}
        self._num_cached = 0

    @property
    def total(self) -> int:
        """Number of blocks in the pool."""
        return len(self._references)

    @property
    def available(self) -> int:
        """Number of blocks that allocate() can return: free and cached ones."""
        return len(self._free_list)

    def counts(self) -> BlockCounts:
        """Return how many blocks are in each state."""
        available = len(self._free_list)
        return BlockCounts(self.total, available - self._num_cached, self._num_cached, self.total - available)

    def references(self, block: BlockId) -> int:
        """Return how many tables hold the block."""
        return self._references[block]

    def lookup(self, key: BlockKey) -> BlockId | None:
        """Return the block with this key, held or cached; changes nothing."""
        return self._blocks_by_key.get(key)

    def allocate(self, count: int) -> list[BlockId]:
        """Allocate blocks with one reference each; the contents of cached ones are evicted.

        Raises OutOfBlocks without a change when fewer are available.
        """
        if count > len(self._free_list):
            raise OutOfBlocks(free=len(self._free_list), total=self.total, needed=count)
        blocks = [self._free_list.pop() for _ in range(count)]
        keys, references = self._keys, self._references
        for block in blocks:
            if keys[block] is not None:
                self._evict(block)
            references[block] = 1
        return blocks

    def add_reference(self, block: BlockId) -> None:
        """Add a reference to a block that lookup() returned."""
        if not self._references[block]:
            self._free_list.remove(block)
            self._num_cached -= 1
        self._references[block] += 1

    def free(self, blocks: Iterable[BlockId]) -> None:
        """Drop one reference of each block, in order; the last one makes it cached (with a key) or free."""
        references, keys = self._references, self._keys
        for block in blocks:
            remaining = references[block] - 1
            assert remaining >= 0, f"block {block} is freed without a reference"
            references[block] = remaining
            if remaining:
                continue
            if keys[block] is None:
                self._free_list.discard(block)
            else:
                self._free_list.push(block)
                self._num_cached += 1

    def publish(self, block: BlockId, key: BlockKey) -> None:
        """Set the key of a held block with complete contents; an existing key stays with its first block."""
        assert self._references[block] > 0, f"block {block} is published without a reference"
        if self._keys[block] is None and key not in self._blocks_by_key:
            self._keys[block] = key
            self._blocks_by_key[key] = block

    def evict_all_cached(self) -> int:
        """Evict every cached block; returns how many. Held blocks keep their contents."""
        evicted = [block for block in self._free_list if self._keys[block] is not None]
        for block in evicted:
            self._evict(block)
        return len(evicted)

    def _evict(self, block: BlockId) -> None:
        key = self._keys[block]
        if key is not None:
            del self._blocks_by_key[key]
            self._keys[block] = None
            self._num_cached -= 1

    def check(self, held: Iterable[BlockId]) -> list[str]:
        """Compare the references with `held`, the blocks of all tables in turn; returns the errors."""
        expected = [0] * self.total
        for block in held:
            expected[block] += 1
        errors = [
            f"block {block} has {count} references, tables hold it {expected_count} times"
            for block, (count, expected_count) in enumerate(zip(self._references, expected, strict=True))
            if count != expected_count
        ]
        errors += [
            f"block {block} is {'in' if block in self._free_list else 'not in'} the free list with {count} references"
            for block, count in enumerate(self._references)
            if (block in self._free_list) == (count > 0)
        ]
        if sum(1 for _ in self._free_list) != len(self._free_list):
            errors.append(
                f"the free list counts {len(self._free_list)} blocks and holds {sum(1 for _ in self._free_list)}"
            )
        keys = {key: block for block, key in enumerate(self._keys) if key is not None}
        if keys != self._blocks_by_key:
            errors.append(f"{len(keys)} blocks have a key, {len(self._blocks_by_key)} keys are cached")
        cached = sum(1 for block in self._free_list if self._keys[block] is not None)
        if cached != self._num_cached:
            errors.append(f"{cached} free blocks have a key, {self._num_cached} are counted")
        return errors
