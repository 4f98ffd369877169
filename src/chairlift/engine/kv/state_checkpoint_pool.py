"""StateCheckpointPool: counts references to saved states of layers and finds the cached ones by their hash.

A checkpoint is the state of all layers that keep one, after the tokens of a prefix that ends with a full block. Its key
is the hash of that block. Each checkpoint is in exactly one state:

    held      references > 0             a scheduled step saves it or loads it; may have a key
    cached    references == 0, a key     a hit may load it; allocate() evicts the one that was used least recently
    free      references == 0, no key
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from chairlift.core.block_hash import BlockHash

CheckpointId = int

NO_CHECKPOINT: CheckpointId = -1
"""The checkpoint of a prefix of no tokens, which begins with the zero state."""


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """Number of checkpoints in each state; free + cached + held == total."""

    total: int
    free: int
    cached: int
    held: int


class StateCheckpointPool:
    """References and keys of all checkpoints. Every operation is O(1).

    Attributes:
        num_hits: references that were added to load a checkpoint.
        num_saves: checkpoints that were published.
        num_skipped_saves: allocations that found every checkpoint held.
        num_evictions: cached checkpoints that were evicted for others.
    """

    def __init__(self, num_checkpoints: int) -> None:
        self._references = [0] * num_checkpoints
        self._keys: list[BlockHash | None] = [None] * num_checkpoints
        self._checkpoints_by_key: dict[BlockHash, CheckpointId] = {}
        self._free = list(reversed(range(num_checkpoints)))  # the last one is allocated next
        self._cached: OrderedDict[CheckpointId, None] = OrderedDict()  # least recently used first
        self.num_hits = self.num_saves = self.num_skipped_saves = self.num_evictions = 0

    @property
    def total(self) -> int:
        """Number of checkpoints in the pool."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Number of checkpoints without a reference and without a key."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Number of checkpoints that allocate() can return: those without a reference."""
        return len(self._free) + len(self._cached)

    def counts(self) -> CheckpointCounts:
        """Return how many checkpoints are in each state."""
        free, cached = len(self._free), len(self._cached)
        return CheckpointCounts(self.total, free, cached, self.total - free - cached)

    def lookup(self, key: BlockHash) -> CheckpointId | None:
        """Return the checkpoint with this key, held or cached; changes nothing."""
        return self._checkpoints_by_key.get(key)

    def allocate(self) -> CheckpointId | None:
        """Return a checkpoint to save into, with one reference; None while all are held.

        Takes a free one, else the cached one that was used least recently, whose contents are lost.
        """
        if self._free:
            checkpoint = self._free.pop()
        elif self._cached:
            checkpoint, _ = self._cached.popitem(last=False)
            self._remove_key(checkpoint)
            self.num_evictions += 1
        else:
            self.num_skipped_saves += 1
            return None
        self._references[checkpoint] = 1
        return checkpoint

    def add_reference(self, checkpoint: CheckpointId) -> None:
        """Add a reference to a checkpoint that lookup() returned, which will be loaded."""
        if not self._references[checkpoint]:
            del self._cached[checkpoint]
        self._references[checkpoint] += 1
        self.num_hits += 1

    def free(self, checkpoint: CheckpointId) -> None:
        """Drop a reference; the last one makes the checkpoint cached, as the one used last, or free without a key."""
        references = self._references
        references[checkpoint] -= 1
        assert references[checkpoint] >= 0, f"checkpoint {checkpoint} is freed without a reference"
        if references[checkpoint]:
            return
        if self._keys[checkpoint] is None:
            self._free.append(checkpoint)
        else:
            self._cached[checkpoint] = None

    def publish(self, checkpoint: CheckpointId, key: BlockHash) -> bool:
        """Set the key of a held checkpoint that is saved; False where another checkpoint has this key already."""
        assert self._references[checkpoint] > 0, f"checkpoint {checkpoint} is published without a reference"
        assert self._keys[checkpoint] is None, f"checkpoint {checkpoint} is published twice"
        if key in self._checkpoints_by_key:
            return False
        self._keys[checkpoint] = key
        self._checkpoints_by_key[key] = checkpoint
        self.num_saves += 1
        return True

    def discard(self, key: BlockHash) -> None:
        """Make the cached checkpoint with this key free; does nothing where it is held or has no such key."""
        checkpoint = self._checkpoints_by_key.get(key)
        if checkpoint is not None and not self._references[checkpoint]:
            del self._cached[checkpoint]
            self._remove_key(checkpoint)
            self._free.append(checkpoint)

    def evict_all_cached(self) -> int:
        """Make every cached checkpoint free; returns how many."""
        keys = [self._keys[checkpoint] for checkpoint in self._cached]
        for key in keys:
            assert key is not None, "a cached checkpoint has no key"
            self.discard(key)
        return len(keys)

    def forget_all(self) -> None:
        """Remove every key, that of held checkpoints, too: no sequence may start with any of these states."""
        self.evict_all_cached()
        for checkpoint in list(self._checkpoints_by_key.values()):
            self._remove_key(checkpoint)

    def _remove_key(self, checkpoint: CheckpointId) -> None:
        key = self._keys[checkpoint]
        assert key is not None, f"checkpoint {checkpoint} has no key"
        del self._checkpoints_by_key[key]
        self._keys[checkpoint] = None

    def check(self, held: Iterable[CheckpointId]) -> list[str]:
        """Compare the references with `held`, the checkpoint of each known reference; returns the errors."""
        expected = [0] * self.total
        for checkpoint in held:
            expected[checkpoint] += 1
        errors = [
            f"checkpoint {checkpoint} has {count} references, {expected_count} are known"
            for checkpoint, (count, expected_count) in enumerate(zip(self._references, expected, strict=True))
            if count != expected_count
        ]
        free = set(self._free)
        for checkpoint, (count, key) in enumerate(zip(self._references, self._keys, strict=True)):
            state = (checkpoint in free, checkpoint in self._cached)
            if state != (not count and key is None, not count and key is not None):
                errors.append(f"checkpoint {checkpoint} with {count} references is (free, cached): {state}")
        if len(free) != len(self._free):
            errors.append(f"{len(self._free)} checkpoints are listed as free, {len(free)} different ones")
        keys = {key: checkpoint for checkpoint, key in enumerate(self._keys) if key is not None}
        if keys != self._checkpoints_by_key:
            errors.append(f"{len(keys)} checkpoints have a key, {len(self._checkpoints_by_key)} keys are cached")
        return errors
