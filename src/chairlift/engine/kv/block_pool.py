"""BlockPool: who holds which block, and which free blocks still hold something that can be shared.

Each block is in exactly one state:

    held      references > 0             in somebody's table; may carry a name (its hash) as well
    cached    references == 0, named     in the free list; a hit revives it, take() forgets it
    free      references == 0, no name   in the free list, ahead of the cached ones
"""

from collections.abc import Iterable
from dataclasses import dataclass

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.kv.block_hash import BlockHash
from chairlift.engine.kv.free_block_list import BlockId, FreeBlockList

BlockKey = tuple[int, BlockHash]
"""(layer group, chained hash of the tokens up to the block's end)"""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """How many blocks are in each state; free + cached + held == total."""

    total: int
    free: int
    cached: int
    held: int


class BlockPool:
    """References and names of all blocks. Every operation is O(1) a block."""

    def __init__(self, num_blocks: int) -> None:
        self._order = FreeBlockList(num_blocks)
        self._references = [0] * num_blocks
        self._names: list[BlockKey | None] = [None] * num_blocks
        self._resident: dict[BlockKey, BlockId] = {}
        self._cached = 0

    @property
    def total(self) -> int:
        """Blocks in the pool."""
        return len(self._references)

    @property
    def available(self) -> int:
        """Blocks that take() can give: free and cached ones."""
        return len(self._order)

    def counts(self) -> BlockCounts:
        """Return how many blocks are in each state."""
        available = len(self._order)
        return BlockCounts(self.total, available - self._cached, self._cached, self.total - available)

    def references(self, block: BlockId) -> int:
        """Return how many tables hold the block."""
        return self._references[block]

    def lookup(self, name: BlockKey) -> BlockId | None:
        """Return the block with these contents, held or cached; changes nothing."""
        return self._resident.get(name)

    def allocate(self, count: int) -> list[BlockId]:
        """Take blocks for new contents, one reference each; what a cached one held is forgotten.

        Raises OutOfBlocks when there are fewer; nothing has changed then.
        """
        if count > len(self._order):
            raise OutOfBlocks(free=len(self._order), total=self.total, needed=count)
        blocks = [self._order.pop() for _ in range(count)]
        names, references = self._names, self._references
        for block in blocks:
            if names[block] is not None:
                self._forget(block)
            references[block] = 1
        return blocks

    def add_reference(self, block: BlockId) -> None:
        """Add a reference to a block that find() named."""
        if not self._references[block]:
            self._order.remove(block)
            self._cached -= 1
        self._references[block] += 1

    def free(self, blocks: Iterable[BlockId]) -> None:
        """Drop one reference of each, in this order; the last one makes a block cached (named) or free."""
        references, names = self._references, self._names
        for block in blocks:
            left = references[block] - 1
            assert left >= 0, f"block {block} is given back but nobody holds it"
            references[block] = left
            if left:
                continue
            if names[block] is None:
                self._order.discard(block)
            else:
                self._order.push(block)
                self._cached += 1

    def publish(self, block: BlockId, name: BlockKey) -> None:
        """Name a held block whose contents are complete. A name that exists already stays with its first block."""
        assert self._references[block] > 0, f"block {block} is published but nobody holds it"
        if self._names[block] is None and name not in self._resident:
            self._names[block] = name
            self._resident[name] = block

    def evict_all_cached(self) -> int:
        """Drop the contents of every cached block; returns how many. Held blocks keep theirs."""
        forgotten = [block for block in self._order if self._names[block] is not None]
        for block in forgotten:
            self._forget(block)
        return len(forgotten)

    def _forget(self, block: BlockId) -> None:
        name = self._names[block]
        if name is not None:
            del self._resident[name]
            self._names[block] = None
            self._cached -= 1

    def check(self, held: Iterable[BlockId]) -> list[str]:
        """Compare the books with `held`, every table's blocks one after another; returns what is wrong."""
        expected = [0] * self.total
        for block in held:
            expected[block] += 1
        found = [
            f"block {block} has {has} references, tables hold it {wants} times"
            for block, (has, wants) in enumerate(zip(self._references, expected, strict=True))
            if has != wants
        ]
        found += [
            f"block {block} is {'in' if block in self._order else 'not in'} the free list with {references} references"
            for block, references in enumerate(self._references)
            if (block in self._order) == (references > 0)
        ]
        if sum(1 for _ in self._order) != len(self._order):
            found.append(f"the free list counts {len(self._order)} blocks and holds {sum(1 for _ in self._order)}")
        names = {name: block for block, name in enumerate(self._names) if name is not None}
        if names != self._resident:
            found.append(f"{len(names)} blocks carry a name, {len(self._resident)} names are known")
        cached = sum(1 for block in self._order if self._names[block] is not None)
        if cached != self._cached:
            found.append(f"{cached} free blocks carry a name, {self._cached} are counted")
        return found
