"""CacheTrimmer: decides when used blocks of a pool become fresh again, so that their memory can be returned.

A pool keeps as many blocks as sequences held at once in the last two windows, and max_cached more for prefixes.
"""

from chairlift.engine.kv.block_pool import BlockPool
from chairlift.engine.kv.free_block_list import BlockId

WINDOW_SECONDS = 60.0
"""Seconds of a window; what was held up to two windows ago will be needed again soon."""

LEAST_SHARE = 0.125
"""Share of the kept blocks that must be left over: returning memory and using it again costs time."""


class CacheTrimmer:
    """Trims one pool. Reads no clock."""

    def __init__(self, pool: BlockPool, max_cached: int) -> None:
        self._pool, self._max_cached = pool, max_cached
        self._peak = self._last_peak = 0
        self._window_began: float | None = None

    @property
    def seconds_to_trim(self) -> float | None:
        """Seconds after which trim() may have work in an idle engine; None where no more blocks can be left over."""
        return WINDOW_SECONDS if self._is_worth(self._pool.held + self._max_cached) else None

    def count_held(self) -> None:
        """Count the blocks that sequences hold; call it in each step, after it was scheduled."""
        self._peak = max(self._peak, self._pool.held)

    def trim(self, now: float) -> list[tuple[BlockId, BlockId]] | None:
        """Trim the pool at the end of a window; call it between two steps, while none is in flight.

        Returns (from, to) of blocks to copy before the memory from block num_used on is returned; None where nothing
        changed.
        """
        pool = self._pool
        self.count_held()
        if self._window_began is None:
            self._window_began = now
        if now - self._window_began < WINDOW_SECONDS:
            return None
        num_kept = max(self._peak, self._last_peak) + self._max_cached
        self._last_peak, self._peak, self._window_began = self._peak, pool.held, now
        if not self._is_worth(num_kept):
            return None
        before = pool.num_used
        moves = pool.trim(num_kept)
        return moves if pool.num_used < before else None

    def _is_worth(self, num_kept: int) -> bool:
        return self._pool.num_used > (1 + LEAST_SHARE) * num_kept
