"""NativeAttention beyond the contract in tests/model/attention: split contexts, every instruction set."""

import itertools

import pytest
import torch

from chairlift.model.attention.base import AttentionSpec
from chairlift.model.backends.native_attention import NativeAttention
from chairlift.model.kernels.cpu.threads import get_thread_pool
from support_batches import Row, make_batch
from support_native import instruction_sets, need_native
from support_shares import each_value

CPU = torch.device("cpu")
BOUNDS = {torch.bfloat16: 2e-2, torch.float32: 2e-6}
"""Dtypes of queries and cache, and the largest relative error."""


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", instruction_sets())
def test_one_long_row_is_attended_in_parts_with_the_same_bits(name: str, dtype: torch.dtype, dim: int) -> None:
    need_native()
    length, generator = 1500, torch.Generator().manual_seed(dim)
    blocks = tuple(torch.randperm(100, generator=generator)[: -(-length // 16)].tolist())
    key, value = (torch.randn(length, 1, dim, generator=generator).to(dtype) for _ in range(2))
    query = torch.randn(1, 3, dim, generator=generator).to(dtype)
    batch = make_batch([Row(1, length, (blocks,))], 16)
    spec, found = AttentionSpec(0, dim**-0.5), []
    for threads in (1, 2, 3):  # one thread computes the row whole, more threads split its spans
        backend = NativeAttention(get_thread_pool(threads), name)
        kv = backend.allocate_kv_cache(1, 100, 16, 1, dim, dtype, CPU)[0]
        slots = torch.tensor([blocks[at // 16] * 16 + at % 16 for at in range(length)])
        backend.write_kv(key, value, kv, slots)
        out = torch.empty_like(query)
        backend.attend(query, kv, batch, spec, None, out)
        found.append(out)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    scores = torch.einsum("qhd,nkd->hn", query.double(), key.double()) * spec.scale
    exact = torch.einsum("hn,nd->hd", scores.softmax(-1), value[:, 0].double())
    assert (found[0][0].double() - exact).abs().max() <= BOUNDS[dtype] * exact.abs().max()


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6, 1e9, 1e15])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", instruction_sets())
def test_scores_of_any_size_are_weighed(name: str, dtype: torch.dtype, size: float) -> None:
    """The largest score has weight 1 at every magnitude."""
    need_native()
    length, generator = 600, torch.Generator().manual_seed(5)
    backend = NativeAttention(get_thread_pool(2), name)
    kv = backend.allocate_kv_cache(1, 40, 16, 1, 64, dtype, CPU)[0]
    key, value, query = (torch.randn(length, 1, 64, generator=generator).to(dtype) for _ in range(3))
    query = query[:20] * size
    backend.write_kv(key, value, kv, torch.arange(length))
    batch = make_batch([Row(20, length, (tuple(range(38)),))], 16)
    out = torch.empty_like(query)
    backend.attend(query, kv, batch, AttentionSpec(0, 0.125), None, out)
    for row in range(20):
        seen = length - 19 + row
        scores = key[:seen, 0].double() @ query[row, 0].double() * 0.125
        exact = scores.softmax(-1) @ value[:seen, 0].double()
        second = scores.topk(2).values
        if size == 1.0 or second[0] - second[1] > 1e-5 * second[0]:  # else float32 cannot distinguish them
            assert (out[row, 0].double() - exact).abs().max() <= BOUNDS[dtype] * max(1.0, exact.abs().max()), row


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("which", "bad"), [(0, torch.nan), (1, torch.nan), (1, torch.inf)])
def test_what_is_no_number_in_one_sequence_leaves_the_others_alone(which: int, bad: float, dtype: torch.dtype) -> None:
    need_native()
    backend = NativeAttention(get_thread_pool(2), instruction_sets()[0])
    kv = backend.allocate_kv_cache(1, 10, 16, 2, 32, dtype, CPU)[0]
    tensors = torch.randn(3, 160, 2, 32, generator=torch.Generator().manual_seed(3)).to(dtype)
    backend.write_kv(tensors[0], tensors[1], kv, torch.arange(160))
    batch = make_batch([Row(1, 40, ((1, 2, 3),)), Row(1, 50, ((4, 5, 6, 7),))], 16)
    query, before, after = tensors[2, :2], torch.empty(2, 2, 32).to(dtype), torch.empty(2, 2, 32).to(dtype)
    backend.attend(query, kv, batch, AttentionSpec(0, 0.2), None, before)
    invalid = tensors[:2, 21:22].clone()
    invalid[which, 0, 1] = bad
    backend.write_kv(invalid[0], invalid[1], kv, torch.tensor([21]))
    backend.attend(query, kv, batch, AttentionSpec(0, 0.2), None, after)
    assert torch.equal(after[1], before[1]) and torch.equal(after[0, 0], before[0, 0])
    assert not after[0, 1].isfinite().all()


@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("window", "shared", "name", "dtype"),
    each_value([0, 20, 100, 300], [1, 2, 3], instruction_sets(), list(BOUNDS), count=24),
)
def test_a_token_has_the_same_bits_in_every_chunk(name: str, shared: int, window: int, dtype: torch.dtype) -> None:
    """The other rows of a tile change which key tiles are read together, but not the order of a row's sums."""
    need_native()
    length, dim, generator = 600, 80, torch.Generator().manual_seed(shared)
    blocks = tuple(torch.randperm(60, generator=generator)[: -(-length // 16)].tolist())
    backend = NativeAttention(get_thread_pool(2), name)
    kv = backend.allocate_kv_cache(1, 60, 16, 2, dim, dtype, CPU)[0]
    tensors = torch.randn(2, length, 2, dim, generator=generator).to(dtype)
    backend.write_kv(
        tensors[0], tensors[1], kv, torch.tensor([blocks[at // 16] * 16 + at % 16 for at in range(length)])
    )
    query = torch.randn(length, 2 * shared, dim, generator=generator).to(dtype)
    spec, found = AttentionSpec(0, dim**-0.5, window=window or None), []
    for counts in ([length], [1] * length, [2, 3, 5, 7, 64, 19] * 6):
        out = torch.empty_like(query)
        for begin, count in zip(itertools.accumulate(counts, initial=0), counts, strict=False):
            batch = make_batch([Row(count, begin + count, (blocks,))], 16)
            backend.attend(query[begin : begin + count], kv, batch, spec, None, out[begin : begin + count])
        found.append(out)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_other_shapes_and_dtypes_are_refused() -> None:
    need_native()
    backend = NativeAttention(get_thread_pool(2), instruction_sets()[0])
    (kv,) = backend.allocate_kv_cache(1, 4, 16, 2, 32, torch.bfloat16, torch.device("cpu"))
    slots = torch.arange(5)
    good = torch.zeros(5, 2, 32, dtype=torch.bfloat16)
    for bad in (good[:2], good[:, :1], good[..., :16], good.float(), torch.zeros(5, 2, 48, dtype=torch.bfloat16)):
        for key, value in ((bad, good), (good, bad)):
            with pytest.raises(ValueError, match=r"keys and values must be bfloat16 \(5, 2, 32\)"):
                backend.write_kv(key, value, kv, slots)
    for bad_slots in (slots.int(), torch.arange(10)[::2]):
        with pytest.raises(ValueError, match="slot_mapping must be contiguous int64"):
            backend.write_kv(good, good, kv, bad_slots)
    batch, spec = make_batch((Row(5, 5, ((0,),)),), 16), AttentionSpec(0, 1.0)
    query = torch.zeros(5, 4, 32, dtype=torch.bfloat16)
    for bad in (query[:4], query[:, :3], query[..., :16], query.float()):
        with pytest.raises(ValueError, match="queries must be bfloat16"):
            backend.attend(bad, kv, batch, spec, None, torch.empty_like(query))
    for bad in (query[:4], query.float()):
        with pytest.raises(ValueError, match="the output must be like the queries"):
            backend.attend(query, kv, batch, spec, None, torch.empty_like(bad))
