"""Stand-in for the package flash-attn-3: its function flash_attn_with_kvcache in torch, on a CPU.

Parameter names, layouts and conditions are those of hopper/flash_attn_interface.py and hopper/flash_api.cpp in
https://github.com/Dao-AILab/flash-attention (read at 01afd16 and 000090d). As on a GPU, whole pages are multiplied: a
NaN in a page that the table names reaches the row even where it is masked, but not behind the row's last key. Tokens
behind cu_seqlens_q[-1] hold NaN, for memory that is not written.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from support_attention_library import attend_pages, refuse_others

USED = {
    "q", "k_cache", "v_cache", "cache_seqlens", "page_table", "cu_seqlens_q", "max_seqlen_q", "softmax_scale", "causal",
    "window_size", "softcap", "return_softmax_lse",
}  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any = None, v: Any = None, qv: Any = None, rotary_cos: Any = None,
    rotary_sin: Any = None, cache_seqlens: Any = None, cache_batch_idx: Any = None, cache_leftpad: Any = None,
    page_table: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k_new: Any = None, max_seqlen_q: Any = None,
    rotary_seqlens: Any = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
    softmax_scale: Any = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
    softcap: float = 0.0, rotary_interleaved: bool = True, scheduler_metadata: Any = None, num_splits: int = 0,
    pack_gqa: Any = None, sm_margin: int = 0, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    refuse_others(flash_attn_with_kvcache, locals(), USED)
    rows = len(cu_seqlens_q) - 1
    _, heads, head_dim = q.shape
    assert q.dtype in (torch.bfloat16, torch.float16) and q.dtype == k_cache.dtype == v_cache.dtype
    assert head_dim <= 256 and head_dim % 8 == 0
    for cache in (k_cache, v_cache):
        assert cache.ndim == 4 and cache.shape[3] == head_dim and cache.stride(-1) == 1
        assert heads % cache.shape[2] == 0
    for tensor in (cache_seqlens, page_table, cu_seqlens_q):
        assert tensor.dtype == torch.int32 and tensor.device == q.device and tensor.stride(-1) == 1
    assert cache_seqlens.shape == (rows,) and len(page_table) == rows and page_table.ndim == 2
    assert isinstance(max_seqlen_q, int) and int(cu_seqlens_q.diff().max()) <= max_seqlen_q
    assert causal and window_size[1] == (-1 if window_size[0] == -1 else 0)
    out, logsumexp = torch.full_like(q, torch.nan), torch.full((heads, len(q)), torch.nan)
    for row in range(rows):
        tokens, length = slice(int(cu_seqlens_q[row]), int(cu_seqlens_q[row + 1])), int(cache_seqlens[row])
        if tokens.start == tokens.stop:
            continue
        pages = page_table[row, : -(-length // k_cache.shape[1])]
        attended, sums = attend_pages(
            q[tokens], k_cache, v_cache, pages, length, scale=softmax_scale, keys_before=window_size[0], cap=softcap
        )
        out[tokens], logsumexp[:, tokens] = attended.to(q.dtype), sums.float()
    return (out, logsumexp, None, None) if return_softmax_lse else out


def stand_in() -> ModuleType:
    """Return a module for sys.modules["flash_attn_interface"]."""
    module = ModuleType("flash_attn_interface")
    module.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    return module
