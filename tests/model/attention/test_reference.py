"""ReferenceAttention beyond the contract: it reads only positions that a new token can see."""

import pytest
import torch

from chairlift.model.attention import reference
from chairlift.model.attention.base import AttentionSpec, PagedKV
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.reference import _mask as make_mask
from support_batches import Row, make_batch


def attend(table: tuple[int, ...], new: int, seq_len: int, window: int | None, poisoned: list[int]) -> list[float]:
    """Attend to one row in ten blocks of four. The value of position p is p; the poisoned slots hold NaN."""
    backend = ReferenceAttention()
    kv = PagedKV(torch.zeros(10, 4, 1, 2), torch.zeros(10, 4, 1, 2))
    for position in range(seq_len):
        if table[position // 4] >= 0:
            kv.value[table[position // 4], position % 4] = position
    kv.key.view(40, 2)[poisoned] = torch.nan
    kv.value.view(40, 2)[poisoned] = torch.nan
    batch = make_batch([Row(new, seq_len, (table,))], 4)
    out = torch.empty(new, 1, 2)
    query = torch.ones(new, 1, 2)
    backend.attend(query, kv, batch, AttentionSpec(0, 1.0, window), backend.plan(batch), out)
    return [round(value, 4) for value in out[:, 0, 0].tolist()]


def test_equal_keys_give_the_mean_of_what_a_token_sees() -> None:
    assert attend((3, 1, 8), 4, 10, None, []) == [3.0, 3.5, 4.0, 4.5]
    assert attend((3, 1, 8), 4, 10, 3, []) == [5.0, 6.0, 7.0, 8.0]


def test_a_window_begins_in_the_middle_of_a_block() -> None:
    # Position 10 sees 8 to 10; position 7 and the free slots after position 10 hold NaN.
    assert attend((-1, 1, 8), 1, 11, 3, [1 * 4 + 3, 8 * 4 + 3]) == [9.0]


def test_table_entries_behind_the_window_may_be_stale() -> None:
    assert attend((-1, 2, 5), 2, 11, 3, [2 * 4 + 2]) == [8.0, 9.0]


def test_a_row_without_tokens_gets_zeros() -> None:
    backend = ReferenceAttention()
    batch = make_batch([Row(1, 1, ((0,),))], 4)
    empty = type(batch)(**{**{name: getattr(batch, name) for name in batch.__slots__}, "seq_lens_list": (0,)})
    out = torch.full((1, 1, 2), torch.nan)
    kv = PagedKV(torch.full((1, 4, 1, 2), torch.nan), torch.full((1, 4, 1, 2), torch.nan))
    backend.attend(torch.ones(1, 1, 2), kv, empty, AttentionSpec(0, 1.0), backend.plan(empty), out)
    assert out.tolist() == [[[0.0, 0.0]]]


def test_layers_of_one_step_share_their_masks() -> None:
    backend = ReferenceAttention()
    batch = make_batch([Row(4, 4, ((0,),)), Row(4, 4, ((1,),))], 4)
    kv = PagedKV(torch.zeros(2, 4, 1, 2), torch.zeros(2, 4, 1, 2))
    plan = backend.plan(batch)
    for _ in range(3):
        backend.attend(torch.ones(8, 1, 2), kv, batch, AttentionSpec(0, 1.0), plan, torch.empty(8, 1, 2))
    assert set(plan.masks) == {None}


@pytest.mark.parametrize("window", [None, 1, 2, 5, 7])
def test_a_long_row_is_attended_in_parts_with_masks_that_do_not_grow(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, new, seq_len = (3, 1, 8, 0, 2), 13, 17
    whole = attend(table, new, seq_len, window, [])
    monkeypatch.setattr(reference, "MAX_QUERIES", 4)
    assert attend(table, new, seq_len, window, []) == whole
    masks: list[torch.Tensor] = []
    monkeypatch.setattr(reference, "_mask", lambda *args: masks.append(made := make_mask(*args)) or made)
    attend(table, new, seq_len, window, [])
    assert [None if mask is None else tuple(mask.shape) for mask in masks] == [
        None if end - start == 1 else (end - start, 4 + end - (0 if window is None else max(0, 5 + start - window)))
        for start, end in ((0, 4), (4, 8), (8, 12), (12, 13))
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_soft_cap_is_computed_wide_and_rounded_once(dtype: torch.dtype) -> None:
    backend = ReferenceAttention()
    batch = make_batch([Row(1, 4, ((0,),))], 4)
    kv = PagedKV(torch.randn(1, 4, 1, 8).to(dtype), torch.randn(1, 4, 1, 8).to(dtype))
    query = torch.randn(1, 1, 8).to(dtype)
    out = torch.empty(1, 1, 8, dtype=dtype)
    backend.attend(query, kv, batch, AttentionSpec(0, 1.0, None, 3.0), backend.plan(batch), out)
    scores = 3 * torch.tanh(kv.key[0, :, 0].double() @ query[0, 0].double() / 3)
    exact = scores.softmax(0) @ kv.value[0, :, 0].double()
    assert torch.allclose(out[0, 0].double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)
