"""FreeBlockList: keeps the used blocks without a reference in the order of their next allocation.

The list is also the eviction order of the prefix cache: a freed block keeps its contents until its next allocation,
so the block at the front is the least likely to be needed.

    front                                                              back
    without contents worth keeping  →  freed long ago  →  …  →  freed last
    pop() takes this    discard() inserts here           push() inserts here
                      remove() takes any of them when a prefix hit reactivates it

All four are O(1): two flat arrays, indexed by block id, link the neighbours, and one sentinel closes the ring.
"""

from collections.abc import Iterator

from chairlift.core.errors import OutOfBlocks

BlockId = int

NULL_BLOCK: BlockId = -1
"""Entry of a block table at an index without a block: behind a sliding window."""


class FreeBlockList:
    """Ids of free blocks, the next allocation first.

    Owns the order only; block_pool.py owns reference counts and hashes.
    """

    def __init__(self, num_blocks: int) -> None:
        """Create an empty list for ids below num_blocks."""
        self._sentinel = num_blocks
        self._next: list[BlockId] = [num_blocks] * (num_blocks + 1)
        self._previous: list[BlockId] = [num_blocks] * (num_blocks + 1)
        self._free = [False] * num_blocks
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: BlockId) -> bool:
        return self._free[block]

    def __iter__(self) -> Iterator[BlockId]:
        block = self._next[self._sentinel]
        while block != self._sentinel:
            yield block
            block = self._next[block]

    @property
    def front(self) -> BlockId | None:
        """The block that pop() would return; None in an empty list."""
        return self._next[self._sentinel] if self._count else None

    def pop(self) -> BlockId:
        """Remove and return the block at the front.

        Raises OutOfBlocks without a change when none is free.
        """
        if not self._count:
            raise OutOfBlocks(free=0, total=self._sentinel)
        sentinel, after = self._sentinel, self._next
        block = after[sentinel]
        after[sentinel] = second = after[block]
        self._previous[second] = sentinel
        self._free[block] = False
        self._count -= 1
        return block

    def push(self, block: BlockId) -> None:
        """Insert a block whose contents may be used again, behind all free blocks."""
        self._insert(self._previous[self._sentinel], block)

    def discard(self, block: BlockId) -> None:
        """Insert a block whose contents cannot be used again, ahead of all free blocks."""
        self._insert(self._sentinel, block)

    def remove(self, block: BlockId) -> None:
        """Remove a given block from the list: a prefix hit reactivates it."""
        assert self._free[block], f"block {block} is not free"
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        # Its own links are stale from now on; _free tells that they do not count.
        self._free[block] = False
        self._count -= 1

    def replace(self, block: BlockId, other: BlockId) -> None:
        """Give the place of a block in the list to another one, which is in the list, too; the block leaves it."""
        self.remove(other)
        self._insert(self._previous[block], other)
        self.remove(block)

    def _insert(self, before: BlockId, block: BlockId) -> None:
        assert not self._free[block], f"block {block} is released twice"
        after = self._next[before]
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self._free[block] = True
        self._count += 1
