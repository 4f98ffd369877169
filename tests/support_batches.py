"""ForwardBatches by hand: rows over scattered blocks, and a small driver that runs sequences through a paged cache."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chairlift.model.attention.base import AttentionBackend, ForwardBatch, GroupBatch
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.layers.causal_lm import CausalLM, ForwardContext


@dataclass(frozen=True)
class Row:
    """One sequence in a step.

    Attributes:
        new: tokens it brings.
        seq_len: tokens after the step.
        tables: block ids by group.
    """

    new: int
    seq_len: int
    tables: tuple[tuple[int, ...], ...]


def make_batch(rows: Sequence[Row], block_size: int, padding: int = 0) -> ForwardBatch:
    """Make the batch of some rows (those with one token first), with tokens of padding behind them."""
    cu_q = [0]
    positions: list[int] = []
    for row in rows:
        cu_q.append(cu_q[-1] + row.new)
        positions += range(row.seq_len - row.new, row.seq_len)
    groups = []
    for group in range(len(rows[0].tables)):
        width = max(len(row.tables[group]) for row in rows)
        table = torch.full((len(rows), width), -1, dtype=torch.int32)
        slots: list[int] = []
        for index, row in enumerate(rows):
            blocks = row.tables[group]
            table[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
            taken = range(row.seq_len - row.new, row.seq_len)
            slots += [blocks[place // block_size] * block_size + place % block_size for place in taken]
        groups.append(GroupBatch(table, torch.tensor(slots + [-1] * padding, dtype=torch.int64)))
    decodes = [row.new == 1 for row in rows]
    assert decodes == sorted(decodes, reverse=True), "rows with one token come first"
    lengths = [row.seq_len for row in rows]
    return ForwardBatch(
        num_seqs=len(rows),
        num_tokens=cu_q[-1] + padding,
        num_decodes=sum(decodes),
        max_seqlen_q=max(row.new for row in rows),
        max_seqlen_k=max(lengths),
        positions=torch.tensor(positions + [0] * padding, dtype=torch.int64),
        cu_seqlens_q=torch.tensor(cu_q, dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        logits_indices=torch.arange(cu_q[-1], dtype=torch.int32),
        groups=tuple(groups),
        cu_q_list=tuple(cu_q),
        seq_lens_list=tuple(lengths),
    )


def teacher_forced_logits(
    model: CausalLM, sequences: Sequence[Sequence[int]], dtype: torch.dtype, *, block_size: int = 16,
    max_chunk: int = 64, seed: int = 0, backend: AttentionBackend | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Return logits [length, V] of every position of every sequence, computed in random chunks and batches.

    Blocks are scattered; all slots hold NaN until they are written, and a block that no later token can see is
    exchanged in the table for one that only holds NaN.
    """
    dice = random.Random(seed)
    backend = backend or ReferenceAttention()
    windows = model.groups.windows
    needed = [-(-len(tokens) // block_size) for tokens in sequences]
    total = 1 + sum(needed) * len(windows)
    free = list(range(1, total))
    dice.shuffle(free)
    poison = 0
    tables = [[[free.pop() for _ in range(blocks)] for _ in windows] for blocks in needed]
    kv = backend.allocate_kv_cache(
        model.groups.layers_per_group, total, block_size, model.num_kv_heads, model.head_dim, dtype, torch.device("cpu")
    )
    for one in kv:
        one.key.fill_(torch.nan)
        one.value.fill_(torch.nan)
    done = [0] * len(sequences)
    logits = [torch.empty(len(tokens), model.vocab_size, dtype=dtype) for tokens in sequences]
    while any(start < len(tokens) for start, tokens in zip(done, sequences, strict=True)):
        open_rows = [index for index, tokens in enumerate(sequences) if done[index] < len(tokens)]
        chosen = dice.sample(open_rows, dice.randint(1, len(open_rows)))
        news = {i: dice.choice((1, dice.randint(1, max_chunk))) for i in chosen}
        news = {i: min(new, len(sequences[i]) - done[i]) for i, new in news.items()}
        chosen.sort(key=lambda i: news[i] != 1)
        for i in chosen:
            for table, window in zip(tables[i], windows, strict=True):
                behind = 0 if window is None else max(0, done[i] - window + 1) // block_size
                table[:behind] = [poison] * behind
        rows = [
            Row(news[i], done[i] + news[i], tuple(tuple(table) for table in tables[i])) for i in chosen
        ]  # fmt: skip
        padding = dice.choice((0, 0, 3))
        batch = make_batch(rows, block_size, padding)
        ids = [token for i in chosen for token in sequences[i][done[i] : done[i] + news[i]]] + [0] * padding
        context = ForwardContext(batch, kv, backend, backend.plan(batch))
        with torch.inference_mode():
            hidden = model.forward(torch.tensor(ids), context)
            computed = model.logits(hidden[batch.logits_indices])
        for i, start in zip(chosen, batch.cu_q_list[:-1], strict=True):
            logits[i][done[i] : done[i] + news[i]] = computed[start : start + news[i]]
            done[i] += news[i]
    return logits
