"""Pages of rows: the same on the device and on the host, none before the first key that a row sees, none missing."""

from dataclasses import replace

import torch

from chairlift.model.attention.visible_pages import list_pages, visible_pages
from chairlift.model.batch.forward_batch import ForwardBatch
from support_batches import Row, make_batch
from support_shares import for_each

BLOCK_SIZES = (1, 4, 16)
ROWS = ((1, 1), (1, 16), (1, 130), (3, 3), (17, 80), (64, 129))  # new tokens and length


def batch_of(block_size: int) -> tuple[list[list[int]], ForwardBatch]:
    blocks = iter(range(1, 1000))
    tables = [[next(blocks) for _ in range(-(-length // block_size))] for _, length in ROWS]
    rows = [Row(new, length, (tuple(table),)) for (new, length), table in zip(ROWS, tables, strict=True)]
    return tables, make_batch(rows, block_size)


def first_block(new: int, length: int, window: int | None, block_size: int) -> int:
    """Return the block of the first key that the first new token sees."""
    return 0 if window is None else max(0, length - new - window + 1) // block_size


@for_each("window", [None, 1, 4, 20, 64, 500])
@for_each("block_size", BLOCK_SIZES)
def test_pages_begin_at_the_first_visible_block(block_size: int, window: int | None) -> None:
    tables, batch = batch_of(block_size)
    pages, lengths = visible_pages(batch, 0, window, block_size)
    assert pages.dtype == lengths.dtype == torch.int32 and pages.stride(1) == 1
    for row, ((new, length), table) in enumerate(zip(ROWS, tables, strict=True)):
        first = first_block(new, length, window, block_size)
        assert lengths[row] == length - first * block_size
        assert pages[row, : len(table) - first].tolist() == table[first:]


@for_each("window", [None, 1, 4, 20, 64, 500])
@for_each("block_size", BLOCK_SIZES)
def test_the_host_lists_the_same_pages(block_size: int, window: int | None) -> None:
    tables, batch = batch_of(block_size)
    for rows in (range(3), range(3, 6), range(1, 2)):
        pages = list_pages(batch, rows, 0, window, block_size)
        table = batch.groups[0].block_table.flatten()
        listed = table[torch.from_numpy(pages.entries).long()].tolist()
        for index, row in enumerate(rows):
            new, length = ROWS[row]
            first = first_block(new, length, window, block_size)
            assert listed[pages.offsets[index] : pages.offsets[index + 1]] == tables[row][first:]
            assert (len(tables[row]) - 1) * block_size + pages.last_sizes[index] == length


def test_a_step_of_a_graph_has_rows_without_tokens_and_a_table_that_is_too_wide() -> None:
    batch = make_batch([Row(1, 40, ((5, 6, 7),)), Row(1, 3, ((8,),))], 16)
    group = replace(batch.groups[0], block_table=torch.nn.functional.pad(batch.groups[0].block_table, (0, 9, 0, 1)))
    padded = replace(
        batch, num_seqs=3, num_tokens=3, groups=(group,), seq_lens=torch.tensor([40, 3, 0], dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, 1, 2, 2], dtype=torch.int32), cu_q_list=(), seq_lens_list=(), max_seqlen_k=64,
    )  # fmt: skip
    pages, lengths = visible_pages(padded, 0, None, 16)
    assert pages.shape == (3, 4) and lengths.tolist() == [40, 3, 0]
    pages, lengths = visible_pages(padded, 0, 10, 16)
    assert pages.shape == (3, 2) and pages[0].tolist() == [6, 7] and pages[1, 0] == 8
    assert lengths.tolist() == [24, 3, 0]


def test_a_window_makes_the_table_narrow() -> None:
    """17 tokens in a row are in at most two blocks of 16, and 18 tokens in three."""
    _, batch = batch_of(16)
    decodes = replace(batch, max_seqlen_q=1)
    assert visible_pages(decodes, 0, 17, 16)[0].shape[1] == 2
    assert visible_pages(decodes, 0, 18, 16)[0].shape[1] == 3
