"""TorchAttention beyond the contract: one workspace, indices computed once per step, no read outside of rows."""

import random

import pytest
import torch

from chairlift.model.attention import torch_paged
from chairlift.model.attention.base import AttentionSpec, PagedKV
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.batch.forward_batch import ForwardBatch
from support_batches import Row, make_batch

CPU = torch.device("cpu")


def step(lengths: list[int], new_tokens: list[int] | None = None, seed: int = 0) -> tuple[ForwardBatch, int]:
    """Build a batch of rows of these lengths in shuffled blocks of 4; return it and the number of blocks."""
    dice, blocks = random.Random(seed), [-(-length // 4) for length in lengths]
    free = list(range(sum(blocks)))
    dice.shuffle(free)
    tables = [tuple(free.pop() for _ in range(count)) for count in blocks]
    new_tokens = new_tokens or [1] * len(lengths)
    rows = [Row(new, length, (table,)) for new, length, table in zip(new_tokens, lengths, tables, strict=True)]
    return make_batch(rows, 4), sum(blocks)


def attended(
    backend: TorchAttention | ReferenceAttention, batch: ForwardBatch, blocks: int, spec: AttentionSpec, heads: int = 4
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    kv = backend.allocate_kv_cache(1, blocks, 4, 2, 8, torch.float64, CPU)[0]
    for cache in (kv.key, kv.value):
        cache.copy_(torch.randn(cache.shape, generator=generator, dtype=torch.float64))
    query = torch.randn(batch.num_tokens, heads, 8, generator=generator, dtype=torch.float64)
    out = torch.full_like(query, torch.nan)
    backend.attend(query, kv, batch, spec, backend.plan(batch), out)
    return out


LENGTHS = {
    "one bucket": [9, 9, 9],
    "padded": [30, 28, 31, 29],
    "several": [3, 200, 7, 190, 1, 33],
}


@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("tight", [False, True])
def test_however_rows_are_parted_the_result_is_the_reference_s(
    name: str, window: int | None, tight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tight:  # one bucket per row, and no cached indices
        monkeypatch.setattr(torch_paged, "GATHER_BYTES", 1)
        monkeypatch.setattr(torch_paged, "OPERATION_BYTES", 0)
        monkeypatch.setattr(torch_paged, "MAX_CACHED_INDICES", 0)
    else:
        monkeypatch.setattr(torch_paged, "OPERATION_BYTES", 256 * 30)
    batch, blocks = step(LENGTHS[name])
    spec = AttentionSpec(0, 0.3, window)
    expected = attended(ReferenceAttention(), batch, blocks, spec)
    assert torch.allclose(attended(TorchAttention(), batch, blocks, spec), expected, atol=1e-13)


@pytest.mark.parametrize("window", [None, 5])
def test_a_row_with_empty_sequence_gets_zeros_beside_others(window: int | None) -> None:
    batch, blocks = step([5, 6, 7])
    lengths = (5, 0, 7)
    fields = {name: getattr(batch, name) for name in batch.__slots__}
    fields |= {"seq_lens_list": lengths, "seq_lens": torch.tensor(lengths, dtype=torch.int32)}
    out = attended(TorchAttention(), type(batch)(**fields), blocks, AttentionSpec(0, 1.0, window))
    assert not out[1].any()
    assert out[0].any() and out[2].any() and out.isfinite().all()


@pytest.mark.parametrize("window", [None, 1, 3, 11])
@pytest.mark.parametrize(("most", "kept"), [(1, 1 << 20), (4, 0), (1024, 20)])
def test_long_rows_are_attended_in_parts(
    window: int | None, most: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, blocks = step([6, 30, 17, 9], [1, 13, 17, 9])
    spec = AttentionSpec(0, 0.3, window)
    expected = attended(ReferenceAttention(), batch, blocks, spec)
    monkeypatch.setattr(torch_paged, "MAX_QUERIES", most)
    monkeypatch.setattr(torch_paged, "MAX_CACHED_INDICES", kept)
    assert torch.allclose(attended(TorchAttention(), batch, blocks, spec), expected, atol=1e-13)


def test_layers_of_one_step_share_masks_and_indices() -> None:
    backend = TorchAttention()
    batch, blocks = step([9, 40, 30, 20], [1, 1, 7, 5])
    kv = backend.allocate_kv_cache(1, blocks, 4, 2, 8, torch.float32, CPU)[0]
    plan, query = backend.plan(batch), torch.randn(batch.num_tokens, 4, 8)
    made = []
    for window in (None, 6, None, 6):
        backend.attend(query, kv, batch, AttentionSpec(0, 1.0, window), plan, torch.empty_like(query))
        made.append((plan.masks[window], plan.decodes[0, window], plan.chunks[0, window, 2], plan.chunks[0, window, 3]))
    assert all(one is other for one, other in zip(made[0] + made[1], made[2] + made[3], strict=True))
    # Decodes are padded to the row with most blocks of 4. A chunk reads all that its first token sees. With the window,
    # tokens 3 to 8 are in three blocks.
    assert plan.num_cached == 2 * 40 + 30 + 20 + 2 * 12 + (7 + 5) + (5 + 5)


def test_the_workspace_is_made_once_and_grows_for_a_longer_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_paged, "GATHER_BYTES", 40 * 2 * 2 * 8 * 8)
    backend = TorchAttention()
    spaces = []
    for lengths in ([40], [3, 4], [90], [8]):
        batch, blocks = step(lengths)
        attended_once(backend, batch, blocks)
        assert backend._workspace is not None
        spaces.append((backend._workspace.data_ptr(), backend._workspace.numel()))
    assert spaces[0] == spaces[1] and spaces[2] == spaces[3]
    assert [numel for _, numel in spaces] == [40 * 32, 40 * 32, 92 * 32, 92 * 32]


def attended_once(backend: TorchAttention, batch: ForwardBatch, blocks: int) -> None:
    attended(backend, batch, blocks, AttentionSpec(0, 1.0))


def test_what_goes_to_slot_minus_one_lands_behind_the_last_block() -> None:
    backend = TorchAttention()
    kv: PagedKV = backend.allocate_kv_cache(1, 2, 3, 1, 2, torch.float32, CPU)[0]
    backend.write_kv(torch.full((2, 1, 2), 5.0), torch.full((2, 1, 2), 6.0), kv, torch.tensor([-1, -1]))
    assert not kv.key.any() and not kv.value.any()
    spare = torch_paged._slots_of(kv, spare=True)
    assert spare.shape == (9, 2, 1, 2)
    assert spare[-1].flatten().tolist() == [5.0, 5.0, 6.0, 6.0]


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [None, 9])
def test_nan_in_one_row_does_not_reach_the_others(window: int | None, sinks: bool) -> None:
    backend = TorchAttention()
    batch, blocks = step([20, 19, 18, 17])
    logits = torch.zeros(4, dtype=torch.float64) if sinks else None
    spec = AttentionSpec(0, 1.0, window, None, logits)
    kv = backend.allocate_kv_cache(1, blocks, 4, 2, 8, torch.float64, CPU)[0]
    poisoned = batch.groups[0].block_table[1, :5].long()
    kv.key[poisoned], kv.value[poisoned] = torch.nan, torch.nan
    out = torch.empty(4, 4, 8, dtype=torch.float64)
    backend.attend(torch.randn(4, 4, 8, dtype=torch.float64), kv, batch, spec, backend.plan(batch), out)
    assert out[1].isnan().all()
    assert out[[0, 2, 3]].isfinite().all()
