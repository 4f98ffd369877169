"""write_kv_kernel alone: strided inputs, heads beyond one tile, skipped slots. test_triton.py covers the others."""

import torch

from chairlift.model.kernels.cuda.attention_kernels import WRITE_HEADS, write_kv_kernel


def test_tokens_are_stored_at_their_slots_and_nothing_else_is_touched() -> None:
    heads, head_dim, block_size = WRITE_HEADS + 3, 24, 4
    packed = torch.randn(4, 2 * heads, head_dim)
    key, value = packed.split(heads, dim=1)
    slots = torch.tensor([9, -1, 0, 7])
    caches = [torch.full((3, block_size, heads, head_dim), 5.0) for _ in range(2)]
    write_kv_kernel[(4, 2)](
        key, value, *caches, slots, key.stride(0), value.stride(0), STRIDE_BLOCK=caches[0].stride(0),
        STRIDE_SLOT=caches[0].stride(1), STRIDE_HEAD=caches[0].stride(2), KV_HEADS=heads, HEAD_DIM=head_dim, WIDTH=32,
        BLOCK_SIZE=block_size, TILE_HEADS=WRITE_HEADS,
    )  # fmt: skip
    for cache, new in zip(caches, (key, value), strict=True):
        expected = torch.full((12, heads, head_dim), 5.0)
        expected[[9, 0, 7]] = new[[0, 2, 3]]
        assert torch.equal(cache.view(12, heads, head_dim), expected)
