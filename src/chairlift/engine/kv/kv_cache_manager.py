"""KVCacheManager: matches cached prefixes, allocates, publishes and releases the blocks of sequences.

waiting sequence   match() ──► PrefixHit ──► allocate_table()    the hit's blocks are shared, new ones allocated
running sequence   reserve(tokens) before a step, publish(computed) after it
removed sequence   release(): blocks with a key stay cached until they are allocated again

Where layers keep a state, a cached prefix has all its blocks and a checkpoint of the state at its end.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from chairlift.core.block_hash import BlockHash
from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import CacheConfig
from chairlift.engine.kv.block_pool import BlockCounts, BlockPool
from chairlift.engine.kv.block_table import BlockTable
from chairlift.engine.kv.free_block_list import NULL_BLOCK, BlockId
from chairlift.engine.kv.layer_groups import LayerGroupLayout, peak_blocks
from chairlift.engine.kv.state_checkpoint_pool import NO_CHECKPOINT, CheckpointId, StateCheckpointPool

NewBlock = tuple[int, int, BlockId]
"""(layer group, index in the table, block)"""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The cached prefix of a sequence; a value, valid until the cache changes.

    Attributes:
        num_tokens: leading tokens that need no computing, less than the sequence has; a multiple of block_size unless
            there is a tail.
        blocks: for each group the blocks of that prefix, NULL_BLOCK where the window does not need them.
        num_shared: blocks in `blocks`.
        num_reactivated: how many of them have no reference now: sharing them takes them from the available blocks.
        pending: hash of the next block while another sequence computes it, else None. Where layers keep a state, the
            hash of a longer prefix's last block while another sequence computes that prefix and will save its state.
        tail: for each group the block of another table that holds the tokens after the last full block and has to be
            copied; empty without such tokens.
        checkpoint: the state at the end of the prefix; NO_CHECKPOINT where no layer keeps one, or without a prefix.
        num_shared_tokens: of a model with such layers, leading tokens whose blocks are cached or pending, also where no
            state is saved.
    """

    num_tokens: int
    blocks: tuple[tuple[BlockId, ...], ...]
    num_shared: int = 0
    num_reactivated: int = 0
    pending: BlockHash | None = None
    tail: tuple[BlockId, ...] = ()
    checkpoint: CheckpointId = NO_CHECKPOINT
    num_shared_tokens: int = 0


class KVCacheManager:
    """Manages the blocks of one pool. Owns every BlockTable that it created until release().

    Attributes:
        config: the settings.
        layouts: the block layout of each layer group.
        pool: the blocks.
        checkpoints: the saved states; none where no layer keeps one.
        no_hit: the hit of no tokens.
        window_blocks_freed: blocks that were freed because they lay behind a window.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.layouts = tuple(LayerGroupLayout(window, config.block_size) for window in config.windows)
        self.pool = BlockPool(config.num_blocks, config.max_cached_blocks)
        self.checkpoints = StateCheckpointPool(config.num_state_checkpoints)
        self._full = tuple(group for group, layout in enumerate(self.layouts) if layout.window is None)
        self._windowed = tuple(group for group, layout in enumerate(self.layouts) if layout.window is not None)
        self._tables: set[BlockTable] = set()
        self._pending: dict[BlockHash, BlockTable] = {}
        self._pending_checkpoints: dict[BlockHash, BlockTable] = {}
        self.no_hit = PrefixHit(0, tuple(() for _ in self.layouts))
        self.window_blocks_freed = 0

    def peak_blocks(self, num_tokens: int, lookahead: int) -> int:
        """Return the most blocks, over all groups, that one sequence of num_tokens holds at once."""
        return peak_blocks(self.layouts, num_tokens, lookahead)

    def is_pending(self, block_hash: BlockHash) -> bool:
        """Return whether a sequence computes what a hit's `pending` names: a block, or a prefix and its state."""
        return block_hash in (self._pending_checkpoints if self.config.has_state else self._pending)

    def match(self, hashes: Sequence[BlockHash], num_tokens: int) -> PrefixHit:
        """Find the longest cached prefix that leaves at least one token to compute; changes nothing."""
        limit = min(len(hashes), (num_tokens - 1) // self.config.block_size)
        if limit <= 0 or not self.config.enable_prefix_caching:
            return self.no_hit
        if self.config.has_state:
            return self._match_with_state(hashes, limit)
        length = self._longest(hashes, limit)
        pending = hashes[length] if length < limit and hashes[length] in self._pending else None
        return self._hit(hashes, length, pending)

    def _hit(self, hashes: Sequence[BlockHash], length: int, pending: BlockHash | None) -> PrefixHit:
        """Return the hit of `length` blocks that are cached in every group as far as it needs them."""
        if not length:
            return PrefixHit(0, self.no_hit.blocks, pending=pending)
        blocks = tuple(self._blocks_of(group, hashes, length) for group in range(len(self.layouts)))
        shared = [block for group in blocks for block in group if block != NULL_BLOCK]
        reactivated = sum(1 for block in shared if not self.pool.references(block))
        return PrefixHit(length * self.config.block_size, blocks, len(shared), reactivated, pending)

    def _match_with_state(self, hashes: Sequence[BlockHash], limit: int) -> PrefixHit:
        """Find the longest prefix, at most `limit` blocks, with all blocks and a checkpoint at its end."""
        length = self._longest_with_state(hashes, limit)
        pending = None
        if self._pending_checkpoints:
            # The longest one: the sequence that computes it has the blocks of all shorter prefixes before.
            longer = (hashes[index] for index in reversed(range(length, limit)))
            pending = next((block_hash for block_hash in longer if block_hash in self._pending_checkpoints), None)
        shared = self._longest(hashes, limit) if self.layouts else length
        while shared < limit and hashes[shared] in self._pending:
            shared += 1
        checkpoint = self.checkpoints.lookup(hashes[length - 1]) if length else NO_CHECKPOINT
        assert checkpoint is not None, "a matched checkpoint is not cached any more"
        hit = self._hit(hashes, length, pending)
        return replace(hit, checkpoint=checkpoint, num_shared_tokens=shared * self.config.block_size)

    def _longest_with_state(self, hashes: Sequence[BlockHash], limit: int) -> int:
        """Return the longest prefix, in blocks, that has all its blocks and a checkpoint at its end."""
        find, length = self.checkpoints.lookup, self._longest(hashes, limit)
        # A shorter prefix needs other blocks in a group with a window.
        while length and (
            find(hashes[length - 1]) is None or (self._windowed and self._longest(hashes, length) < length)
        ):
            length -= 1
        return length

    def fork(self, table: BlockTable, num_tokens: int) -> PrefixHit:
        """Return a hit of the first num_tokens of a table that has computed them; changes nothing.

        Full blocks are shared, the rest has to be copied. No hit where the table has freed some of them.
        """
        full, rest = divmod(num_tokens, self.config.block_size)
        # The part after the last full block is computed again where a void step lost the copy.
        firsts = [layout.first_needed(full * self.config.block_size) for layout in self.layouts]
        # A window may have moved on since the prompt was computed.
        if any(held > first for held, first in zip(table.first_block_index, firsts, strict=True)):
            return self.no_hit
        blocks = tuple(
            (NULL_BLOCK,) * first + tuple(held[first:full]) for held, first in zip(table.groups, firsts, strict=True)
        )
        shared = sum(full - first for first in firsts)
        return PrefixHit(num_tokens, blocks, shared, tail=tuple(held[full] for held in table.groups) if rest else ())

    def copies(self, hit: PrefixHit, table: BlockTable) -> list[tuple[BlockId, BlockId]]:
        """Return (source, target) of the blocks to copy for a table just allocated with this hit."""
        full = hit.num_tokens // self.config.block_size
        return [(source, table.groups[group][full]) for group, source in enumerate(hit.tail)]

    def prefix_blocks(self, hashes: Sequence[BlockHash], num_tokens: int, last_length: int) -> int:
        """Return the number of leading blocks that match() would find; fast near `last_length`."""
        limit = min(len(hashes), (num_tokens - 1) // self.config.block_size)
        if limit <= 0 or not self.config.enable_prefix_caching:
            return 0
        if self.config.has_state:
            return self._longest_with_state(hashes, limit)
        if self._windowed or len(self._full) != 1:
            return self._longest(hashes, limit)
        # A chain is evicted from its tail: where block i is cached, nearly always the blocks before it are, too.
        find, group, length = self.pool.lookup, self._full[0], min(last_length, limit)
        while length and find((group, hashes[length - 1])) is None:
            length -= 1
        while length < limit and find((group, hashes[length])) is not None:
            length += 1
        return length

    def _longest(self, hashes: Sequence[BlockHash], limit: int) -> int:
        """Return the longest prefix, in blocks, that every layer group has as far as its window needs it."""
        length = limit
        find = self.pool.lookup
        for group in self._full:
            num_cached = 0
            while num_cached < length and find((group, hashes[num_cached])) is not None:
                num_cached += 1
            length = num_cached
        # A shorter prefix has another last window in each group, so all groups are asked until none shortens it.
        is_stable = False
        while length and not is_stable:
            is_stable = True
            for group in self._windowed:
                shorter = self._longest_windowed(group, hashes, length)
                is_stable = is_stable and shorter == length
                length = shorter
        return length

    def _longest_windowed(self, group: int, hashes: Sequence[BlockHash], limit: int) -> int:
        """Return the longest prefix, at most `limit` blocks, with its last window cached in this group."""
        layout, size = self.layouts[group], self.config.block_size
        end = limit
        for index in reversed(range(limit)):
            # Blocks before the last window of the prefix need not be cached.
            if index < layout.first_needed(end * size):
                return end
            if self.pool.lookup((group, hashes[index])) is None:
                end = index
        return end

    def _blocks_of(self, group: int, hashes: Sequence[BlockHash], length: int) -> tuple[BlockId, ...]:
        first = self.layouts[group].first_needed(length * self.config.block_size)
        blocks = [self.pool.lookup((group, hashes[index])) for index in range(first, length)]
        assert None not in blocks, "a matched block is not cached any more"
        return (NULL_BLOCK,) * first + tuple(block for block in blocks if block is not None)

    def reserve(self, table: BlockTable, num_tokens: int) -> list[NewBlock]:
        """Allocate blocks up to num_tokens in every group of a table; returns the new blocks.

        Raises OutOfBlocks without a change when the pool has too few.
        """
        size = self.config.block_size
        num_blocks = -(-num_tokens // size)
        missing = [(group, i) for group, blocks in enumerate(table.groups) for i in range(len(blocks), num_blocks)]
        new: list[NewBlock] = []
        if missing:
            for (group, index), block in zip(missing, self.pool.allocate(len(missing)), strict=True):
                table.groups[group].append(block)
                new.append((group, index, block))
            table.num_held += len(new)
        table.capacity = max(table.capacity, num_blocks * size)
        return new

    def trim(self, table: BlockTable, num_tokens: int) -> None:
        """Free the blocks of a table behind its first num_tokens tokens; none of them is published."""
        num_blocks = -(-num_tokens // self.config.block_size)
        freed = [block for blocks in table.groups for block in blocks[num_blocks:]]
        self.pool.free(freed)
        for blocks in table.groups:
            del blocks[num_blocks:]
        table.num_held -= len(freed)
        table.capacity = min(table.capacity, num_blocks * self.config.block_size)

    def blocks_needed(self, hit: PrefixHit, num_tokens: int, lookahead: int, let_go: int = 0) -> int:
        """Return the available blocks that a sequence with this hit takes until it has num_tokens.

        `let_go` is how many blocks of the hit lose their last reference until then: they are reactivated, too. Shared
        blocks save nothing in a window group: they are freed while new ones are allocated.
        """
        total = hit.num_reactivated + let_go
        for layout, shared in zip(self.layouts, hit.blocks, strict=True):
            total += layout.peak_blocks(num_tokens, lookahead) - (len(shared) if layout.window is None else 0)
        # Blocks of a window may be counted as reactivated and as new, but the table never holds more than its peak.
        return min(total, self.peak_blocks(num_tokens, lookahead))

    def blocks_still_needed(self, table: BlockTable, num_tokens: int, lookahead: int) -> int:
        """Return the most available blocks that a table takes while it grows to num_tokens."""
        total = 0
        for layout, blocks, first in zip(self.layouts, table.groups, table.first_block_index, strict=True):
            held = len(blocks) - first
            if layout.window is not None:
                # Only blocks that no other table holds become free for new ones when the window moves on.
                held = sum(1 for block in blocks[first:] if self.pool.references(block) == 1)
            total += max(0, layout.peak_blocks(num_tokens, lookahead) - held)
        return total

    def allocate_table(
        self, hit: PrefixHit, num_tokens: int, hashes: Sequence[BlockHash], checkpoint_positions: Sequence[int] = ()
    ) -> BlockTable:
        """Create the table of a starting sequence: it shares the hit's blocks and reserves num_tokens.

        The full blocks that it will compute are pending from now on, and so are the states that it will save, at ends
        of full blocks (checkpoint_positions), so that other sequences can wait for them. The hit's checkpoint is held.
        Raises OutOfBlocks without a change when the pool has too few.
        """
        size = self.config.block_size
        needed = sum(-(-num_tokens // size) - len(blocks) for blocks in hit.blocks) + hit.num_reactivated
        if needed > self.pool.available:
            raise OutOfBlocks(free=self.pool.available, total=self.pool.total, needed=needed)
        # References come before reserve(), which could evict a cached block of the hit otherwise.
        table = BlockTable(len(self.layouts))
        for group, blocks in enumerate(hit.blocks):
            table.groups[group].extend(blocks)
            table.first_block_index[group] = blocks.count(NULL_BLOCK)
            for block in blocks[table.first_block_index[group] :]:
                self.pool.add_reference(block)
        table.num_held = hit.num_shared
        table.capacity = hit.num_tokens // size * size
        table.num_published = hit.num_tokens // size
        self._tables.add(table)
        try:
            self.reserve(table, num_tokens)
        except OutOfBlocks:
            self.release(table, ())
            raise
        if hit.checkpoint != NO_CHECKPOINT:
            self.checkpoints.add_reference(hit.checkpoint)
            table.checkpoint = hit.checkpoint
        if self.config.enable_prefix_caching:
            for block_hash in hashes[table.num_published :]:
                # Of several tables that compute a block, the first one is ahead.
                self._pending.setdefault(block_hash, table)
            for position in checkpoint_positions:
                if position > hit.num_tokens:
                    self._pending_checkpoints.setdefault(hashes[position // size - 1], table)
        return table

    def take_checkpoint(self, table: BlockTable) -> CheckpointId:
        """Return the checkpoint that the table's sequence loads, with its reference; NO_CHECKPOINT for none."""
        checkpoint, table.checkpoint = table.checkpoint, NO_CHECKPOINT
        return checkpoint

    def next_publish_at(self, num_computed: int) -> int:
        """Return the least number of computed tokens, above this one, at which publish() has work to do."""
        size = self.config.block_size
        change = (num_computed // size + 1) * size
        for group in self._windowed:
            window = self.layouts[group].window
            assert window is not None
            behind = max(0, num_computed - window + 1) // size + 1
            change = min(change, behind * size + window - 1)
        return change

    def publish(self, table: BlockTable, hashes: Sequence[BlockHash], num_computed: int) -> None:
        """Publish the blocks that num_computed confirmed tokens fill; then free those behind the windows."""
        full = min(num_computed // self.config.block_size, len(hashes))
        for index in range(table.num_published, full):
            for group, blocks in enumerate(table.groups):
                if blocks[index] != NULL_BLOCK:
                    self.pool.publish(blocks[index], (group, hashes[index]))
            self._remove_pending(table, hashes[index])
        table.num_published = max(table.num_published, full)
        # Only now: a block that has its key stays cached when it is freed.
        for group in self._windowed:
            self._free_before(table, group, self.layouts[group].first_needed(num_computed))

    def _free_before(self, table: BlockTable, group: int, first: int) -> None:
        blocks = table.groups[group]
        for index in range(table.first_block_index[group], min(first, len(blocks))):
            self.pool.free((blocks[index],))
            blocks[index] = NULL_BLOCK
            table.num_held -= 1
            table.first_block_index[group] = index + 1
            self.window_blocks_freed += 1

    def _remove_pending(self, table: BlockTable, block_hash: BlockHash) -> None:
        if self._pending.get(block_hash) is table:
            del self._pending[block_hash]
        # A state that was not saved although it could have been is not waited for any longer either.
        if self._pending_checkpoints.get(block_hash) is table:
            del self._pending_checkpoints[block_hash]

    def release(self, table: BlockTable, hashes: Sequence[BlockHash]) -> None:
        """Free every block of the table; the only way in which a sequence releases its blocks."""
        assert not table.released, "a block table is released twice"
        table.released = True
        if table.checkpoint != NO_CHECKPOINT:
            self.checkpoints.free(self.take_checkpoint(table))
        # The tail is evicted first: a hit needs all blocks before one, and none behind it.
        self.pool.free(table.tail_first())
        for block_hash in hashes[table.num_published :]:
            self._remove_pending(table, block_hash)
        self._tables.remove(table)

    def num_unshared_tokens(self, table: BlockTable, num_computed: int) -> int:
        """Return how many computed tokens are lost if this table's blocks are released and reused.

        Blocks that other tables hold, too, stay; they are a prefix of the table, whose end is found by bisection.
        """

        def is_sole(block: BlockId) -> bool:
            return block != NULL_BLOCK and self.pool.references(block) < 2

        if not table.groups:
            return num_computed
        shared = bisect_left(table.groups[self._full[0] if self._full else 0], True, key=is_sole)
        return max(0, num_computed - shared * self.config.block_size)

    def counts(self) -> BlockCounts:
        """Return how many blocks are free, cached and held."""
        return self.pool.counts()

    def evict_all(self) -> int:
        """Evict every cached block, and every cached state; returns how many blocks."""
        self.checkpoints.evict_all_cached()
        return self.pool.evict_all_cached()

    def forget_all(self) -> None:
        """Evict every cached block and state, and let no sequence share those that are held now."""
        self.checkpoints.forget_all()
        self.pool.forget_all()

    def check_integrity(self, step_checkpoints: Iterable[CheckpointId] = ()) -> list[str]:
        """Check that free + cached + held == total and that tables hold each reference; return errors.

        `step_checkpoints` are those that scheduled steps hold, once for each reference.
        """
        errors = self.pool.check(block for table in self._tables for _, _, block in table.held())
        errors += [
            f"a table counts {table.num_held} blocks and holds {sum(1 for _ in table.held())}"
            for table in self._tables
            if table.num_held != sum(1 for _ in table.held())
        ]
        errors += [
            f"pending block {block_hash.hex()[:8]} has no owner"
            for block_hash, table in self._pending.items()
            if table.released
        ]
        errors += [
            f"pending state {block_hash.hex()[:8]} has no owner"
            for block_hash, table in self._pending_checkpoints.items()
            if table.released
        ]
        loads = (table.checkpoint for table in self._tables if table.checkpoint != NO_CHECKPOINT)
        return errors + self.checkpoints.check([*loads, *step_checkpoints])
