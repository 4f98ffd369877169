"""Attention backends under test, random batches for them, and dense attention in float64 to compare with.

Every KV slot that no row of the batch owns holds NaN, and so does every block before a sliding window.
"""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.attention.base import AttentionBackend, AttentionSpec, PagedKV
from chairlift.model.attention.flash_attention import FlashAttention3
from chairlift.model.attention.flashinfer import FlashInferAttention
from chairlift.model.attention.registry import make_backend
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.backends.native_attention import NativeAttention
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.kernels.cpu.instruction_sets import selected_instruction_set
from chairlift.model.kernels.cpu.threads import get_thread_pool
from support_batches import Row, make_batch
from support_flash_attn import flash_attn_with_kvcache
from support_flashinfer import BatchPrefillWithPagedKVCacheWrapper
from support_native import need_native
from support_shares import FULL

CPU = torch.device("cpu")
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}

# (new tokens, tokens before them) of each row; those with one token come first.
BATCHES = {
    "pure decode": ((1, 0), (1, 1), (1, 36), (1, 63), (1, 130)),
    "fresh prefill": ((2, 0), (37, 0), (64, 0), (90, 0)),
    "chunk behind a prefix": ((7, 1), (16, 48), (33, 100)),
    "mixed": ((1, 5), (1, 99), (3, 0), (40, 31), (65, 64)),
}


@dataclass(frozen=True)
class Case:
    """A batch, and the keys, values and queries of its rows."""

    batch: ForwardBatch
    rows: tuple[Row, ...]
    keys: tuple[Tensor, ...]  # by row, float64 [seq_len, kv_heads, D]
    values: tuple[Tensor, ...]
    query: Tensor  # float64 [T, heads, D]
    window: int | None


def make(name: str) -> AttentionBackend:
    """Return a backend on the CPU; those of packages call the stand-ins."""
    if name == "flashinfer":
        return FlashInferAttention(BatchPrefillWithPagedKVCacheWrapper, TorchAttention(), CPU)
    if name == "fa3":
        return FlashAttention3(flash_attn_with_kvcache, TorchAttention())
    if name != "native":
        return make_backend(name)
    need_native()
    return NativeAttention(get_thread_pool(2 if FULL else 1), selected_instruction_set())


def widest(backend: str) -> torch.dtype:
    """Return the widest dtype of a backend."""
    narrow = {"native": torch.float32, "triton": torch.float32, "flashinfer": torch.bfloat16, "fa3": torch.bfloat16}
    return narrow.get(backend, torch.float64)


def head_dim(backend: str, size: int) -> int:
    """Return a size of heads that a backend has: `size`, where it has any."""
    return 64 if backend == "flashinfer" else size


def make_case(
    name: str, block_size: int, kv_heads: int, shared: int, window: int | None, padding: int, seed: int, width: int = 16
) -> Case:
    dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    shapes = BATCHES[name]
    free = list(range(1, 1 + sum(-(-(new + before) // block_size) for new, before in shapes)))
    dice.shuffle(free)
    rows = []
    for new, before in shapes:
        table = [free.pop() for _ in range(-(-(new + before) // block_size))]
        if window is not None:  # block 0 holds NaN only
            num_hidden = max(0, before - window + 1) // block_size
            table[:num_hidden] = [0] * num_hidden
        rows.append(Row(new, new + before, (tuple(table),)))

    def random_tensor(length: int, heads: int) -> Tensor:
        return torch.randn(length, heads, width, generator=generator, dtype=torch.float64)

    batch = make_batch(rows, block_size, padding)
    return Case(
        batch, tuple(rows), tuple(random_tensor(row.seq_len, kv_heads) for row in rows),
        tuple(random_tensor(row.seq_len, kv_heads) for row in rows),
        random_tensor(batch.num_tokens, kv_heads * shared), window,
    )  # fmt: skip


def dense(case: Case, spec: AttentionSpec, dtype: torch.dtype) -> Tensor:
    """Compute attention without a KV cache, one head and token at a time, in float64 from inputs rounded to dtype."""
    out = torch.zeros_like(case.query)
    query = case.query.to(dtype).double()
    for index, row in enumerate(case.rows):
        keys, values = (every[index].to(dtype).double() for every in (case.keys, case.values))
        shared = query.shape[1] // keys.shape[1]
        for offset in range(row.num_new_tokens):
            token = case.batch.cu_q_list[index] + offset
            position = row.seq_len - row.num_new_tokens + offset
            first = 0 if spec.window is None else max(0, position - spec.window + 1)
            for head in range(query.shape[1]):
                visible = slice(first, position + 1)
                scores = keys[visible, head // shared] @ query[token, head] * spec.scale
                if spec.softcap is not None:
                    scores = spec.softcap * torch.tanh(scores / spec.softcap)
                if spec.sinks is not None:
                    scores = torch.cat((scores, spec.sinks[head : head + 1].double()))
                weights = scores.softmax(0)[: position + 1 - first]
                out[token, head] = weights @ values[visible, head // shared]
    return out


def fill(
    backend: AttentionBackend, case: Case, block_size: int, dtype: torch.dtype, cache: torch.dtype | None = None
) -> PagedKV:
    """Allocate a KV cache of NaN and write the rows' earlier tokens, with a window only the last `window` ones.

    Packages multiply whole blocks, so that theirs have all tokens of the first block, as in an engine.
    """
    has_whole_blocks = isinstance(backend, FlashInferAttention | FlashAttention3)
    blocks = 1 + sum(len(row.tables[0]) for row in case.rows)
    _, heads, width = case.keys[0].shape
    kv = backend.allocate_kv_cache(1, blocks, block_size, heads, width, cache or dtype, CPU)[0]
    kv.key.fill_(torch.nan)
    kv.value.fill_(torch.nan)
    for row, keys, values in zip(case.rows, case.keys, case.values, strict=True):
        before = row.seq_len - row.num_new_tokens
        first = 0 if case.window is None else max(0, before - case.window + 1)
        first -= first % block_size if has_whole_blocks else 0
        slots = [row.tables[0][at // block_size] * block_size + at % block_size for at in range(first, before)]
        backend.write_kv(
            keys[first:before].to(dtype), values[first:before].to(dtype), kv, torch.tensor(slots, dtype=torch.int64)
        )
    return kv


def attended(
    backend: AttentionBackend, case: Case, spec: AttentionSpec, block_size: int, dtype: torch.dtype,
    cache: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Write the step's new keys and values, and compute attention with the backend; `cache` is dtype if left out."""
    kv = fill(backend, case, block_size, dtype, cache)
    new = [
        torch.cat([each[row.seq_len - row.num_new_tokens :] for row, each in zip(case.rows, every, strict=True)])
        for every in (case.keys, case.values)
    ]
    padding = case.batch.num_tokens - len(new[0])
    key, value = (torch.cat((each, torch.full((padding, *each.shape[1:]), torch.nan))).to(dtype) for each in new)
    query = case.query.to(dtype)
    backend.write_kv(key, value, kv, case.batch.groups[0].slot_mapping)
    out = torch.full_like(query, torch.nan)
    backend.attend(query, kv, case.batch, spec, backend.plan(case.batch), out)
    return out


def check(
    backend: str, case: Case, spec: AttentionSpec, block_size: int, dtype: torch.dtype,
    cache: torch.dtype | None = None,
) -> None:  # fmt: skip
    found = attended(make(backend), case, spec, block_size, dtype, cache).double()
    expected = dense(case, spec, dtype)
    real = case.batch.cu_q_list[-1]
    assert (found[:real] - expected[:real]).abs().max() <= BOUNDS[dtype]
    assert torch.equal(found[real:], torch.zeros_like(found[real:]))
