"""dense_rows: the numbers of a stored weight, computed some rows at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

from chairlift.model.weights.shard import Part

CHUNK_ELEMENTS = 2**22
"""Numbers that are computed at once, in float32: so much memory is needed beside the weights while they load."""


def dense_rows(
    shape: tuple[int, ...], part: Part | None, dtype: torch.dtype, read: Callable[[range], Tensor]
) -> Tensor:  # fmt: skip
    """Return a weight, or a part of it, in a dtype.

    Args:
        shape: of the whole weight.
        part: for each axis the elements to return; None for all.
        dtype: of the result.
        read: returns whole rows [n, ...], float32 or as they are stored, for numbers of rows one after another.
    """
    assert part is None or all(each.step in (None, 1) for each in part), f"{part}: a rank has adjacent elements"
    rows, columns = range(shape[0]), part[1:] if part is not None else ()
    if part is not None:
        rows = rows[part[0]]
    sizes = [len(range(size)[each]) for size, each in zip(shape[1:], columns, strict=True)] if columns else shape[1:]
    out = torch.empty(len(rows), *sizes, dtype=dtype)
    step = max(1, CHUNK_ELEMENTS // max(1, shape[-1] if len(shape) > 1 else 1))
    for begin in range(0, len(rows), step):
        numbers = read(rows[begin : begin + step])
        out[begin : begin + step] = numbers[(slice(None), *columns)]
    return out
