"""ForwardBatches over scattered blocks, and a loop that runs sequences through a KV cache."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from chairlift.engine.step_plan import NO_LOADS, NO_SAVES
from chairlift.model.attention.base import AttentionBackend
from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.batch.forward_batch import ForwardBatch, GroupBatch
from chairlift.model.batch.state_cache import StateCache
from chairlift.model.batch.state_step import StateStep
from chairlift.model.layers.causal_lm_protocol import CausalLM, ForwardContext, TakesAdapters


@dataclass(frozen=True)
class Row:
    """One sequence in a step.

    Attributes:
        num_new_tokens: tokens of the sequence in this step.
        seq_len: tokens after the step.
        tables: block ids by group.
    """

    num_new_tokens: int
    seq_len: int
    tables: tuple[tuple[int, ...], ...]


def make_batch(rows: Sequence[Row], block_size: int, padding: int = 0) -> ForwardBatch:
    """Make a batch of rows, followed by `padding` tokens.

    Rows with one token come first.
    """
    cu_q = [0]
    positions: list[int] = []
    for row in rows:
        cu_q.append(cu_q[-1] + row.num_new_tokens)
        positions += range(row.seq_len - row.num_new_tokens, row.seq_len)
    groups = []
    for group in range(len(rows[0].tables)):
        width = max(len(row.tables[group]) for row in rows)
        table = torch.full((len(rows), width), -1, dtype=torch.int32)
        slots: list[int] = []
        for index, row in enumerate(rows):
            blocks = row.tables[group]
            table[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
            token_positions = range(row.seq_len - row.num_new_tokens, row.seq_len)
            slots += [
                blocks[position // block_size] * block_size + position % block_size for position in token_positions
            ]
        groups.append(GroupBatch(table, torch.tensor(slots + [-1] * padding, dtype=torch.int64)))
    decodes = [row.num_new_tokens == 1 for row in rows]
    assert decodes == sorted(decodes, reverse=True), "rows with one token come first"
    lengths = [row.seq_len for row in rows]
    return ForwardBatch(
        num_seqs=len(rows),
        num_tokens=cu_q[-1] + padding,
        num_decodes=sum(decodes),
        max_seqlen_q=max(row.num_new_tokens for row in rows),
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
    max_chunk: int = 64, seed: int = 0, backend: AttentionBackend | None = None, adapters: Sequence[int] = (),
) -> list[torch.Tensor]:  # fmt: skip
    """Return logits [length, V] of all sequences, computed in random chunks and batches.

    `adapters` are the numbers of their adapters, for a model that TakesAdapters.

    Blocks are scattered, and all KV token slots hold NaN until they are written. A block that no later token attends
    to is replaced in the table by a block that holds only NaN.
    """
    rng = random.Random(seed)
    backend = backend or ReferenceAttention()
    windows = model.groups.windows
    needed = [-(-len(tokens) // block_size) for tokens in sequences]
    total = 1 + sum(needed) * len(windows)
    free = list(range(1, total))
    rng.shuffle(free)
    poison = 0
    tables = [[[free.pop() for _ in range(blocks)] for _ in windows] for blocks in needed]
    kv = allocate_kv(backend, model.groups, total, block_size, dtype, torch.device("cpu"))
    for layer_cache in kv:
        layer_cache.key.fill_(torch.nan)
        layer_cache.value.fill_(torch.nan)
    states = None
    if model.state_shapes:
        states = StateCache(model.state_shapes, len(sequences), 0, dtype, torch.device("cpu"))
        for layer in states.layers:
            for tensor in layer.tensors():
                tensor.fill_(torch.nan)
    num_computed = [0] * len(sequences)
    logits = [torch.empty(len(tokens), model.vocab_size, dtype=dtype) for tokens in sequences]
    while any(start < len(tokens) for start, tokens in zip(num_computed, sequences, strict=True)):
        open_rows = [index for index, tokens in enumerate(sequences) if num_computed[index] < len(tokens)]
        selected = rng.sample(open_rows, rng.randint(1, len(open_rows)))
        counts = {i: rng.choice((1, rng.randint(1, max_chunk))) for i in selected}
        counts = {i: min(count, len(sequences[i]) - num_computed[i]) for i, count in counts.items()}
        selected.sort(key=lambda i: counts[i] != 1)
        for i in selected:
            for table, window in zip(tables[i], windows, strict=True):
                num_expired = 0 if window is None else max(0, num_computed[i] - window + 1) // block_size
                table[:num_expired] = [poison] * num_expired
        rows = [
            Row(counts[i], num_computed[i] + counts[i], tuple(tuple(table) for table in tables[i])) for i in selected
        ]
        padding = rng.choice((0, 0, 3))
        batch = make_batch(rows, block_size, padding)
        ids = [token for i in selected for token in sequences[i][num_computed[i] : num_computed[i] + counts[i]]] + [
            0
        ] * padding
        step = None
        if states is not None:
            new, starts = (np.array([row[i] for i in selected], np.int32) for row in (counts, num_computed))
            step = StateStep.of(
                np.array(selected, np.int32), new, starts, NO_LOADS, NO_SAVES, num_slots=len(sequences),
                device=torch.device("cpu"),
            )  # fmt: skip
        context = ForwardContext(batch, kv, backend, backend.plan(batch), states, step)
        if adapters:
            assert isinstance(model, TakesAdapters)
            model.use_adapters(
                np.repeat(np.array([adapters[i] for i in selected], np.int32), [counts[i] for i in selected])
            )
        with torch.inference_mode():
            hidden = model.forward(torch.tensor(ids), context)
            computed = model.logits(hidden[batch.logits_indices])
        for i, start in zip(selected, batch.cu_q_list[:-1], strict=True):
            logits[i][num_computed[i] : num_computed[i] + counts[i]] = computed[start : start + counts[i]]
            num_computed[i] += counts[i]
    return logits
