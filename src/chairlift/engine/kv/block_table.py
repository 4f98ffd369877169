"""BlockTable: the blocks that one sequence holds, by layer group; released exactly once.

group 0 (full)      [ 7  3  9 12 ]            index i holds positions i*block_size ...
group 1 (window)    [ -  -  4  8 ]            "-" is NULL_BLOCK: behind the window, freed
"""

from collections.abc import Iterator

from chairlift.engine.kv.free_block_list import NULL_BLOCK, BlockId
from chairlift.engine.kv.state_checkpoint_pool import NO_CHECKPOINT, CheckpointId


class BlockTable:
    """Block ids of one sequence. Only KVCacheManager changes it.

    Attributes:
        groups: for each layer group the block at each index, NULL_BLOCK where none is held.
        first_block_index: for each group the first index with a held block.
        num_held: number of blocks held in all groups.
        capacity: number of tokens that every group has blocks for.
        num_published: number of leading blocks published to the prefix cache.
        released: whether the blocks were freed.
        checkpoint: the state that the sequence's first step loads, held until that step is scheduled; NO_CHECKPOINT
            for none.
    """

    __slots__ = ("capacity", "checkpoint", "first_block_index", "groups", "num_held", "num_published", "released")

    def __init__(self, num_groups: int) -> None:
        self.groups: list[list[BlockId]] = [[] for _ in range(num_groups)]
        self.first_block_index = [0] * num_groups
        self.num_held = 0
        self.capacity = 0
        self.num_published = 0
        self.released = False
        self.checkpoint: CheckpointId = NO_CHECKPOINT

    def held(self) -> Iterator[tuple[int, int, BlockId]]:
        """Yield (group, index, block) of every held block, in order of index within each group."""
        for group, blocks in enumerate(self.groups):
            for index in range(self.first_block_index[group], len(blocks)):
                yield group, index, blocks[index]

    def tail_first(self) -> list[BlockId]:
        """Return the held blocks of all groups, highest index first, which is the eviction order."""
        # One group is the usual case: a slice is much faster than the interleaving below.
        if len(self.groups) == 1:
            return self.groups[0][self.first_block_index[0] :][::-1]
        longest = max((len(blocks) for blocks in self.groups), default=0)
        return [
            blocks[index]
            for index in reversed(range(longest))
            for blocks in self.groups
            if index < len(blocks) and blocks[index] != NULL_BLOCK
        ]
