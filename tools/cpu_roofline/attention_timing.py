"""decode_seconds(): times the attention of a decode step whose KV cache is too large for the CPU's caches."""

import time

import torch

from chairlift.model.attention.base import AttentionSpec
from chairlift.model.backends.native_attention import NativeAttention
from chairlift.model.batch.forward_batch import ForwardBatch, GroupBatch
from chairlift.model.kernels.cpu.instruction_sets import selected_instruction_set
from chairlift.model.kernels.cpu.threads import get_thread_pool
from cpu_roofline.hardware_peaks import Reader
from cpu_roofline.model_flops import Shape

BLOCK_SIZE = 16
"""Tokens in a block of the KV cache."""

NUM_LAYERS, NUM_REPEATS = 4, 5
"""Timed layers, and how often each is timed. Each layer has its own KV cache, so that none is in the CPU's caches."""


def decode_seconds(
    shape: Shape, num_sequences: int, context_length: int, dtype: torch.dtype, reader: Reader
) -> list[tuple[float, float]]:
    """Return pairs of seconds: the attention of one layer with one new token per sequence, and reading its KV cache.

    Torch's thread count becomes 1, as in the engine process: two thread pools on the same cores wait for each other.
    """
    torch.set_num_threads(1)
    backend = NativeAttention(get_thread_pool(None), selected_instruction_set())
    num_blocks = -(-context_length // BLOCK_SIZE)
    caches = backend.allocate_kv_cache(
        NUM_LAYERS, num_sequences * num_blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim, dtype,
        torch.device("cpu"),
    )  # fmt: skip
    for cache in caches:
        cache.key.normal_()
        cache.value.normal_()
    batch = _decode_batch(num_sequences, context_length, num_blocks)
    query = torch.randn(num_sequences, shape.heads, shape.head_dim).to(dtype)
    out, spec, pairs = torch.empty_like(query), AttentionSpec(0, shape.head_dim**-0.5), []
    for _ in range(NUM_REPEATS):
        for cache in caches:
            started_at = time.perf_counter()
            backend.attend(query, cache, batch, spec, None, out)
            seconds = time.perf_counter() - started_at
            pairs.append((seconds, reader.seconds(cache.key) + reader.seconds(cache.value)))
    return pairs


def _decode_batch(num_sequences: int, context_length: int, num_blocks: int) -> ForwardBatch:
    """Return a decode batch of sequences with `num_blocks` blocks each, in random order in the KV cache."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(num_sequences * num_blocks, generator=generator, dtype=torch.int32)
    position = context_length - 1
    table = table.view(num_sequences, num_blocks)
    slots = table[:, position // BLOCK_SIZE].long() * BLOCK_SIZE + position % BLOCK_SIZE
    rows = torch.arange(num_sequences + 1, dtype=torch.int32)
    lengths = torch.full((num_sequences,), context_length, dtype=torch.int32)
    return ForwardBatch(
        num_seqs=num_sequences, num_tokens=num_sequences, num_decodes=num_sequences, max_seqlen_q=1,
        max_seqlen_k=context_length, positions=torch.full((num_sequences,), position), cu_seqlens_q=rows,
        seq_lens=lengths, logits_indices=rows[:-1], groups=(GroupBatch(table, slots),), cu_q_list=tuple(rows.tolist()),
        seq_lens_list=tuple(lengths.tolist()),
    )  # fmt: skip
