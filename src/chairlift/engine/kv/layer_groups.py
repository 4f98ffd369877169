"""LayerGroupLayout: defines which blocks of a sequence a layer group keeps: all, or those in its sliding window."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerGroupLayout:
    """The block layout of one layer group in one pool.

    Attributes:
        window: a token attends to itself and the window - 1 tokens before it; None for full attention.
        block_size: tokens in a block.
    """

    window: int | None
    block_size: int

    def blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that cover positions 0 to num_tokens - 1."""
        return -(-num_tokens // self.block_size)

    def first_needed(self, num_computed: int) -> int:
        """Return the index of the first block that tokens from position num_computed on attend to."""
        if self.window is None:
            return 0
        return max(0, num_computed - self.window + 1) // self.block_size

    def peak_blocks(self, num_tokens: int, lookahead: int) -> int:
        """Return the most blocks held at once while a sequence grows to num_tokens.

        `lookahead` is how many tokens may be scheduled beyond the confirmed ones. A span of n tokens at any
        start position touches at most ceil((n - 1) / block_size) + 1 blocks.
        """
        whole = self.blocks_for(num_tokens)
        if self.window is None:
            return whole
        span = self.window - 1 + lookahead
        return min(whole, self.blocks_for(span - 1) + 1)


def peak_blocks(layouts: Sequence[LayerGroupLayout], num_tokens: int, lookahead: int) -> int:
    """Return the most blocks, over all groups, that one sequence holds while it grows to num_tokens."""
    return sum(layout.peak_blocks(num_tokens, lookahead) for layout in layouts)
