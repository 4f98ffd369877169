"""AttentionTiles, decode_tiles, extend_tiles: tile sizes and launch options of the attention kernels.

They depend on nothing that changes from step to step, so that they never change a row's bits.
"""

from dataclasses import dataclass

import torch

MIN_TILE = 16
"""Least size of a tile in each direction, which the GPU's instructions for products of tiles demand."""

EXACT, FAST = "tf32x3", "tf32"
"""Three products of the tensor cores, which add up to a product of float32, and one, whose factors have 10 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiles:
    """How a kernel is launched.

    Attributes:
        heads: query heads of one KV head that a program has: all of them, or a part of a large group.
        rows: query rows of a tile.
        keys: keys of a tile.
        width: elements of a head, padded to a power of two.
        num_warps, num_stages: Triton's launch options.
        precision: of products of float32, as Triton names it; 16-bit products are exact.
    """

    heads: int
    rows: int
    keys: int
    width: int
    num_warps: int
    num_stages: int
    precision: str

    def parts(self, group: int) -> int:
        """Return how many programs share the `group` query heads of a KV head."""
        return -(-group // self.heads)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def head_width(head_dim: int) -> int:
    """Return the elements of a head, padded to a power of two that a tile can have."""
    return max(MIN_TILE, _power_of_two(head_dim))


def decode_tiles(dtype: torch.dtype, head_dim: int, group: int) -> AttentionTiles:
    """Return the tiles of decode_kernel; `group` is the number of query heads of a KV head."""
    width = head_width(head_dim)
    heads = _heads_of_program(dtype, width, group)
    rows = max(MIN_TILE, _power_of_two(heads))
    if dtype == torch.float32:
        keys, num_warps = (32, 4) if width <= 128 else (16, 8)
        stages = 2 if width <= 64 else 1
        return AttentionTiles(
            heads=heads, rows=rows, keys=keys, width=width, num_warps=num_warps, num_stages=stages, precision=EXACT
        )
    keys = 64 if width <= 128 else 32
    return AttentionTiles(heads=heads, rows=rows, keys=keys, width=width, num_warps=4, num_stages=3, precision=FAST)


def extend_tiles(dtype: torch.dtype, head_dim: int, group: int, *, is_float8: bool = False) -> AttentionTiles:
    """Return the tiles of extend_kernel; `group` is the number of query heads of a KV head.

    With a cache of 8-bit floats (`is_float8`), or many heads in a program, more stages of small heads would spill
    registers on Blackwell.
    A warp group of Hopper multiplies 64 rows at once. Shared memory stays below the 99 KiB of consumer GPUs.
    """
    width = head_width(head_dim)
    heads = _heads_of_program(dtype, width, group)
    least = _power_of_two(heads)
    if dtype == torch.float32:
        size, num_warps = (32, 4) if width <= 128 else (16, 8)
        return AttentionTiles(
            heads=heads, rows=max(size, least), keys=size, width=width, num_warps=num_warps, num_stages=1,
            precision=EXACT,
        )  # fmt: skip
    if width <= 128:
        stages = 3 if width > 64 else 1 if heads > 32 else 2 if is_float8 else 3
        return AttentionTiles(
            heads=heads, rows=128, keys=64, width=width, num_warps=8, num_stages=stages, precision=FAST
        )
    rows, num_stages = (64, 3) if width <= 256 else (32, 1)
    return AttentionTiles(
        heads=heads, rows=max(rows, least), keys=32, width=width, num_warps=8, num_stages=num_stages, precision=FAST
    )


def _heads_of_program(dtype: torch.dtype, width: int, group: int) -> int:
    """Return how many query heads of a KV head a program has: a larger tile's registers or shared memory overflow."""
    most = (32 if dtype == torch.float32 else 64) if width <= 128 else (16 if dtype == torch.float32 else 32)
    parts = -(-group // most)
    return -(-group // parts)
