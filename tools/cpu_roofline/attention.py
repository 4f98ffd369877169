"""Attention alone: a decode step of long contexts, whose keys and values lie in memory and nowhere nearer."""

import time

import torch

from chairlift.model.attention.base import AttentionSpec, ForwardBatch, GroupBatch
from chairlift.model.kernels.cpu.library import selected_instruction_set
from chairlift.model.kernels.cpu.native_attention import NativeAttention
from chairlift.model.kernels.cpu.threads import get_thread_pool
from cpu_roofline.flops import Shape
from cpu_roofline.peaks import Reader

BLOCK = 16
LAYERS, REPEATS = 4, 5


def decode_seconds(shape: Shape, sequences: int, context: int, reader: Reader) -> list[tuple[float, float]]:
    """Return pairs of seconds: one layer's attention for so many sequences of one new token, and reading its cache.

    Torch computes with one thread from here on, as beside the engine: two pools on the same cores wait for each other.
    """
    torch.set_num_threads(1)
    backend = NativeAttention(get_thread_pool(None), selected_instruction_set())
    each = -(-context // BLOCK)
    caches = backend.allocate_kv_cache(
        LAYERS, sequences * each, BLOCK, shape.kv_heads, shape.head_dim, torch.bfloat16, torch.device("cpu")
    )
    for cache in caches:
        cache.key.normal_()
        cache.value.normal_()
    batch = _batch(sequences, context, each)
    query = torch.randn(sequences, shape.heads, shape.head_dim).bfloat16()
    out, spec, pairs = torch.empty_like(query), AttentionSpec(0, shape.head_dim**-0.5), []
    for _ in range(REPEATS):
        for cache in caches:
            began = time.perf_counter()
            backend.attend(query, cache, batch, spec, None, out)
            took = time.perf_counter() - began
            pairs.append((took, reader.seconds(cache.key) + reader.seconds(cache.value)))
    return pairs


def _batch(sequences: int, context: int, each: int) -> ForwardBatch:
    """Sequences of one new token over blocks in no order."""
    table = torch.randperm(sequences * each, generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    place = context - 1
    table = table.view(sequences, each)
    slots = table[:, place // BLOCK].long() * BLOCK + place % BLOCK
    rows = torch.arange(sequences + 1, dtype=torch.int32)
    lengths = torch.full((sequences,), context, dtype=torch.int32)
    return ForwardBatch(
        num_seqs=sequences, num_tokens=sequences, num_decodes=sequences, max_seqlen_q=1, max_seqlen_k=context,
        positions=torch.full((sequences,), place), cu_seqlens_q=rows, seq_lens=lengths, logits_indices=rows[:-1],
        groups=(GroupBatch(table, slots),), cu_q_list=tuple(rows.tolist()), seq_lens_list=tuple(lengths.tolist()),
    )  # fmt: skip
