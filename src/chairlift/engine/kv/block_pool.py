"""BlockPool: counts references to blocks and finds cached blocks by their hash.

Each block is in exactly one state:

    held      references > 0             in a block table; may have a key (with its hash) as well
    cached    references == 0, a key     in the free list; a hit reactivates it, allocate() evicts it
    free      references == 0, no key    in the free list, ahead of the cached ones
    fresh     references == 0, no key    in no list: it was never allocated, or trim() made it fresh again
    withheld  references == 0, no key    in no list: its id is not below the limit (set_limit)

A held block whose id is not below the limit stays in use; it is withheld when its last reference is dropped.

The memory of a fresh block may not exist yet. So allocate() takes free blocks first, then fresh ones while at most
max_cached blocks are cached, then cached ones. The ids of fresh blocks follow each other, and the lowest comes first.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from chairlift.core.block_hash import BlockHash
from chairlift.core.errors import OutOfBlocks
from chairlift.engine.batch_snapshot import CACHED, FREE, HELD, SHARED, WITHHELD
from chairlift.engine.kv.free_block_list import BlockId, FreeBlockList

BlockKey = tuple[int, BlockHash]
"""(layer group, chained hash of the tokens up to the block's end)"""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Number of blocks in each state; free + cached + held + withheld == total. Fresh blocks count as free."""

    total: int
    free: int
    cached: int
    held: int
    withheld: int = 0


class BlockPool:
    """References and keys of all blocks. Every operation is O(1) a block."""

    def __init__(self, num_blocks: int, max_cached: int | None = None) -> None:
        self._free_list = FreeBlockList(num_blocks)
        self._fresh = range(num_blocks)
        self._max_cached = num_blocks if max_cached is None else max_cached
        self._references = [0] * num_blocks
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._blocks_by_key: dict[BlockKey, BlockId] = {}
        self._num_cached = 0
        self._limit = num_blocks
        self._withheld: set[BlockId] = set()

    @property
    def total(self) -> int:
        """Number of blocks in the pool."""
        return len(self._references)

    @property
    def available(self) -> int:
        """Number of blocks that allocate() can return: free, fresh and cached ones."""
        return len(self._free_list) + len(self._fresh)

    @property
    def num_used(self) -> int:
        """Id of the first fresh block: those below it may have been allocated since the last trim()."""
        return self._fresh.start if self._fresh else self.total

    @property
    def limit(self) -> int:
        """Number of blocks that may be handed out."""
        return self._limit

    @property
    def held(self) -> int:
        """Number of blocks with a reference."""
        return len(self._references) - self.available - len(self._withheld)

    @property
    def cached(self) -> int:
        """Number of blocks without a reference that have a key."""
        return self._num_cached

    @property
    def usable(self) -> int:
        """Number of blocks that are not withheld."""
        return len(self._references) - len(self._withheld)

    def set_limit(self, limit: int) -> None:
        """Hand out only blocks with an id below the limit; cached blocks above it are evicted.

        Held blocks above it stay until they are freed. Takes time for each block between the old and the new limit.
        """
        assert 1 <= limit <= self.total, f"a limit of {limit} blocks in a pool of {self.total}"
        # Held blocks above the limit are withheld by free(), with their last reference.
        for block in range(limit, self._limit):
            if block in self._free_list:
                self._free_list.remove(block)
                self._evict(block)
                self._withheld.add(block)
            elif block in self._fresh:
                self._withheld.add(block)
        self._fresh = range(min(self._fresh.start, limit), min(self._fresh.stop, limit))
        for block in reversed(range(self._limit, limit)):  # the lowest is allocated first
            if block in self._withheld:
                self._withheld.remove(block)
                self._free_list.discard(block)
        self._limit = limit

    def counts(self) -> BlockCounts:
        """Return how many blocks are in each state."""
        free = self.available - self._num_cached
        return BlockCounts(self.total, free, self._num_cached, self.held, len(self._withheld))

    def states(self, stride: int) -> list[int]:
        """Return the state of every stride-th block.

        A state is FREE, CACHED, WITHHELD, HELD by one table or SHARED by several. Takes time for each stride-th block.
        """
        references = self._references[::stride]
        states = [
            (HELD if count == 1 else SHARED) if count else FREE if key is None else CACHED
            for count, key in zip(references, self._keys[::stride], strict=True)
        ]
        # Withheld ids are never below the limit, so the cells before need no look-up.
        for cell in range(-(-self._limit // stride), len(states)):
            if cell * stride in self._withheld:
                states[cell] = WITHHELD
        return states

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
        if count > self.available:
            raise OutOfBlocks(free=self.available, total=self.total, needed=count)
        blocks, references = [], self._references
        for _ in range(count):
            block = self._take()
            references[block] = 1
            blocks.append(block)
        return blocks

    def _take(self) -> BlockId:
        """Remove the block that is allocated next from the free list or the fresh blocks."""
        front = self._free_list.front
        is_fresh_next = front is None or (self._keys[front] is not None and self._num_cached < self._max_cached)
        if self._fresh and is_fresh_next:
            block, self._fresh = self._fresh.start, self._fresh[1:]
            return block
        block = self._free_list.pop()
        self._evict(block)
        return block

    def trim(self, num_kept: int) -> list[tuple[BlockId, BlockId]]:
        """Make the highest used blocks fresh again, down to `num_kept` or to a held block.

        Their cached contents move to free blocks below; where these do not suffice, the oldest ones are evicted first.
        Returns (from, to) of each block whose contents the runner has to copy. Does nothing in a pool with a limit.
        """
        end = self.num_used
        start = max(end - self._num_unheld_before(end), num_kept)
        if self._limit < self.total or start >= end:
            return []
        moves = self._move_cached_below(start)
        for block in range(start, end):
            self._free_list.remove(block)
        self._fresh = range(start, self._fresh.stop if self._fresh else self.total)
        return moves

    def _num_unheld_before(self, end: BlockId) -> int:
        """Return the number of blocks from the last held one to `end`."""
        count = 0
        while count < end and not self._references[end - 1 - count]:
            count += 1
        return count

    def _move_cached_below(self, start: BlockId) -> list[tuple[BlockId, BlockId]]:
        """Give every cached block a free id below `start`; its place in the order of eviction stays."""
        cached = [block for block in self._free_list if self._keys[block] is not None]
        num_places = sum(1 for block in range(start) if not self._references[block])
        for block in cached[: max(0, len(cached) - num_places)]:
            self._evict(block)
        free = [block for block in range(start) if not self._references[block] and self._keys[block] is None]
        moves = []
        for block in cached:
            if block >= start and (key := self._keys[block]) is not None:
                target = free.pop()
                self._free_list.replace(block, target)
                self._free_list.discard(block)
                self._keys[target], self._keys[block] = key, None
                self._blocks_by_key[key] = target
                moves.append((block, target))
        return moves

    def add_reference(self, block: BlockId) -> None:
        """Add a reference to a block that lookup() returned."""
        if not self._references[block]:
            self._free_list.remove(block)
            self._num_cached -= 1
        self._references[block] += 1

    def free(self, blocks: Iterable[BlockId]) -> None:
        """Drop one reference of each block, in order; the last one makes it cached (with a key) or free."""
        references, keys, limit = self._references, self._keys, self._limit
        for block in blocks:
            remaining = references[block] - 1
            assert remaining >= 0, f"block {block} is freed without a reference"
            references[block] = remaining
            if remaining:
                continue
            if block >= limit:
                self._withhold(block)
            elif keys[block] is None:
                # No prefix can hit it: allocated next, it spares a cached block.
                self._free_list.discard(block)
            else:
                self._free_list.push(block)
                self._num_cached += 1

    def _withhold(self, block: BlockId) -> None:
        """Keep a block that was just freed from being handed out; its contents are lost."""
        key = self._keys[block]
        if key is not None:
            del self._blocks_by_key[key]
            self._keys[block] = None
        self._withheld.add(block)

    def publish(self, block: BlockId, key: BlockKey) -> None:
        """Set the key of a held block with complete contents; an existing key stays with its first block."""
        assert self._references[block] > 0, f"block {block} is published without a reference"
        # Two sequences may have computed equal blocks at the same time: one of them is enough.
        if self._keys[block] is None and key not in self._blocks_by_key:
            self._keys[block] = key
            self._blocks_by_key[key] = block

    def evict_all_cached(self) -> int:
        """Evict every cached block; returns how many. Held blocks keep their contents."""
        evicted = [block for block in self._free_list if self._keys[block] is not None]
        for block in evicted:
            self._evict(block)
        return len(evicted)

    def forget_all(self) -> None:
        """Remove every key, that of held blocks, too: none of their contents may be shared any more."""
        # Cached blocks first, since only they count in _num_cached; the keys left are those of held blocks.
        self.evict_all_cached()
        for block in self._blocks_by_key.values():
            self._keys[block] = None
        self._blocks_by_key.clear()

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
            if (block in self._free_list) == (count > 0 or block in self._withheld or block in self._fresh)
        ]
        errors += [
            f"block {block} is fresh with {self._references[block]} references and the key {self._keys[block]}"
            for block in self._fresh
            if self._references[block] or self._keys[block] is not None or block in self._withheld
        ]
        errors += [
            f"block {block} is withheld with {self._references[block]} references and a limit of {self._limit}"
            for block in self._withheld
            if block < self._limit or self._references[block] or self._keys[block] is not None
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
