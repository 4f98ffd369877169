"""The blocks nobody holds, in the order in which they will be taken.

The list is also the eviction order of the prefix cache: a block that was given back keeps its contents until it is
taken again, so the one at the front is the one least likely to be missed.

    front                                                              back
    without contents worth keeping  →  released long ago  →  …  →  released last
    taken by pop()      discard() puts here                 push() puts here
                      any of them leaves by remove() when a prefix hit revives it

All four are O(1): neighbours are kept in two flat arrays indexed by block id, with one sentinel that closes the ring.
"""

from collections.abc import Iterator

from chairlift.core.errors import OutOfBlocks

BlockId = int

NULL_BLOCK: BlockId = -1
"""Stands in a block table where a sequence holds nothing: behind a sliding window."""


class FreeBlockList:
    """Ids of free blocks, next to be taken first.

    Owns: the order. Does not own: reference counts, hashes, contents (see pool.py).
    """

    def __init__(self, num_blocks: int) -> None:
        """Start with every id from 0 to num_blocks - 1 free, in that order."""
        self._sentinel = num_blocks
        self._next: list[BlockId] = [*range(1, num_blocks + 1), 0]
        self._previous: list[BlockId] = [num_blocks, *range(num_blocks)]
        self._free = [True] * num_blocks
        self._count = num_blocks

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: BlockId) -> bool:
        return self._free[block]

    def __iter__(self) -> Iterator[BlockId]:
        block = self._next[self._sentinel]
        while block != self._sentinel:
            yield block
            block = self._next[block]

    def pop(self) -> BlockId:
        """Take the block at the front.

        Raises OutOfBlocks when none is free; nothing has changed then.
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
        """Give a block back whose contents may be wanted again; taken after all that are free now."""
        self._insert(self._previous[self._sentinel], block)

    def discard(self, block: BlockId) -> None:
        """Give a block back whose contents nobody can want; taken before all that are free now."""
        self._insert(self._sentinel, block)

    def remove(self, block: BlockId) -> None:
        """Take this very block out of the middle: a prefix hit brings it back to life."""
        assert self._free[block], f"block {block} is not free"
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self._free[block] = False
        self._count -= 1

    def _insert(self, before: BlockId, block: BlockId) -> None:
        assert not self._free[block], f"block {block} is released twice"
        after = self._next[before]
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self._free[block] = True
        self._count += 1
