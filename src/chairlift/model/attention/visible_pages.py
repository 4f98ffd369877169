"""visible_pages, list_pages: the blocks of rows from the first one that a row's new tokens see, for other libraries.

    block table of a row    | stale | stale | a | b | c | d |       window: the new tokens see keys from within `a` on
    what a library gets                     | a | b | c | d |       and the number of keys from the start of `a`

Libraries compute masked products of whole tiles of keys, so that a NaN in a stale block would reach the row. Their
causal mask and window are counted from the row's end, which the missing blocks do not change.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.model.batch.forward_batch import ForwardBatch

Int32 = NDArray[np.int32]


def visible_pages(batch: ForwardBatch, group: int, window: int | None, block_size: int) -> tuple[Tensor, Tensor]:
    """Return block tables int32 [S, W] and lengths in tokens, int32 [S], computed on the device.

    It reads no tensor on the host, so that a CUDA graph can hold it. Entries beyond a length may be any.
    """
    table = batch.groups[group].block_table
    columns = min(table.shape[1], -(-batch.max_seqlen_k // block_size))
    if window is None:
        return table[:, :columns], batch.seq_lens
    starts = batch.seq_lens - batch.cu_seqlens_q.diff()
    first = (starts - (window - 1)).clamp_(min=0).div_(block_size, rounding_mode="floor")
    # A row sees window - 1 tokens before its new ones; the first of them may be the last of its block.
    width = min(columns, -(-(window + batch.max_seqlen_q - 2) // block_size) + 1)
    index = first[:, None] + torch.arange(width, dtype=torch.int32, device=first.device)
    # Short rows have fewer blocks than `width`: what they repeat lies beyond their length.
    pages = table.gather(1, index.clamp_(max=columns - 1).long())
    return pages, batch.seq_lens - first * block_size


@dataclass(frozen=True, slots=True)
class PageList:
    """The pages of some rows, one row behind the other, computed on the host.

    Attributes:
        offsets: int32 [B + 1], row b has pages offsets[b]:offsets[b + 1].
        entries: int32 [offsets[B]], the page's place in the flattened block table [S * max_blocks].
        last_sizes: int32 [B], tokens in each row's last page, 1 to block_size.
    """

    offsets: Int32
    entries: Int32
    last_sizes: Int32


def list_pages(
    batch: ForwardBatch, rows: range, group: int, window: int | None, block_size: int
) -> PageList:  # fmt: skip
    """Return the pages that rows see, from the lists of the batch; each row has a token at least."""
    ends = np.array(batch.seq_lens_list[rows.start : rows.stop], np.int64)
    cu_q = np.array(batch.cu_q_list[rows.start : rows.stop + 1], np.int64)
    starts = ends - np.diff(cu_q)
    first = np.zeros_like(ends) if window is None else np.maximum(starts - (window - 1), 0) // block_size
    counts = -(-ends // block_size) - first
    offsets = np.zeros(len(ends) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    begins = np.arange(rows.start, rows.stop) * batch.groups[group].block_table.shape[1] + first - offsets[:-1]
    entries = np.arange(offsets[-1]) + np.repeat(begins, counts)
    last_sizes = (ends - 1) % block_size + 1
    return PageList(offsets.astype(np.int32), entries.astype(np.int32), last_sizes.astype(np.int32))
