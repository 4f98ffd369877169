"""copy_blocks, which all torch backends use. The contract of a backend is in test_contract.py."""

import torch

from chairlift.model.attention.base import PagedKV, copy_blocks


def test_a_chain_of_copies_moves_what_was_there_before() -> None:
    kv = [PagedKV(torch.randn(5, 4, 1, 2), torch.randn(5, 4, 1, 2)) for _ in range(2)]
    before = [(each.key.clone(), each.value.clone()) for each in kv]
    copy_blocks(kv, torch.tensor([[1, 2], [2, 3], [0, 4]], dtype=torch.int32))
    for each, (key, value) in zip(kv, before, strict=True):
        assert torch.equal(each.key, key[[0, 1, 1, 2, 0]])
        assert torch.equal(each.value, value[[0, 1, 1, 2, 0]])


def test_views_into_one_tensor_are_copied_too() -> None:
    both = torch.randn(3, 4, 2, 1, 2)
    before = both.clone()
    copy_blocks([PagedKV(both[:, :, 0], both[:, :, 1])], torch.tensor([[0, 2]], dtype=torch.int32))
    assert torch.equal(both, before[[0, 1, 0]])
