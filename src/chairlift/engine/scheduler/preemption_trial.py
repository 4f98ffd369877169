"""PreemptionTrial: counts the blocks that the preemption of some sequences would free."""

from chairlift.engine.kv.free_block_list import NULL_BLOCK, BlockId
from chairlift.engine.kv.kv_cache_manager import KVCacheManager, PrefixHit
from chairlift.engine.sequence import Sequence


class PreemptionTrial:
    """Counts the blocks that preempting some running sequences would give the head; changes nothing.

    A block becomes free when all its holders are preempted. A block that the head shares is both freed and needed.
    """

    def __init__(self, cache: KVCacheManager, lookahead: int, hit: PrefixHit) -> None:
        self._cache, self._lookahead = cache, lookahead
        self._shared = {block for blocks in hit.blocks for block in blocks if block != NULL_BLOCK}
        self._releases: dict[BlockId, int] = {}
        self.sequences: dict[Sequence, int] = {}
        self.freed = 0
        self.revived = 0

    @property
    def num_freed_blocks(self) -> int:
        """Blocks that become free or are no longer reserved."""
        return self.freed + sum(self.sequences.values())

    def add(self, sequence: Sequence) -> None:
        """Add a sequence to the victims."""
        table, releases, references = sequence.table, self._releases, self._cache.pool.references
        assert table is not None
        reserved = sequence.num_unscheduled_tokens > 1
        self.sequences[sequence] = (
            self._cache.blocks_still_needed(table, len(sequence.token_ids), self._lookahead) if reserved else 0
        )
        for block in table.tail_first():
            count = releases[block] = releases.get(block, 0) + 1
            if count == references(block):
                self.freed += 1
                self.revived += block in self._shared

    def undo(self, sequence: Sequence) -> None:
        """Take a sequence out of the victims."""
        table, releases, references = sequence.table, self._releases, self._cache.pool.references
        assert table is not None
        del self.sequences[sequence]
        for block in table.tail_first():
            if releases[block] == references(block):
                self.freed -= 1
                self.revived -= block in self._shared
            releases[block] -= 1
