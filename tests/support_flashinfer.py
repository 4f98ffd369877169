"""Stand-in for the package flashinfer-python: its paged prefill wrapper in torch, on a CPU.

Parameter names, layouts and conditions are those of flashinfer/prefill.py in the wheel of version 0.7.2.post1, and of
its csrc/batch_prefill.cu. As on a GPU, whole pages are multiplied: a NaN in a page that is listed reaches the row even
where it is masked, but not behind the row's last key.
"""

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from support_attention_library import attend_pages, refuse_others

PLAN_USED = {
    "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads", "num_kv_heads",
    "head_dim_qk", "page_size", "causal", "sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type",
}  # fmt: skip
HALF = (torch.bfloat16, torch.float16)


class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
        qo_indptr_buf: Any = None, paged_kv_indptr_buf: Any = None, paged_kv_indices_buf: Any = None,
        paged_kv_last_page_len_buf: Any = None, custom_mask_buf: Any = None, mask_indptr_buf: Any = None,
        backend: str = "auto", jit_args: Any = None, jit_kwargs: Any = None, variant_owns_mask: bool = False,
    ) -> None:  # fmt: skip
        refuse_others(
            BatchPrefillWithPagedKVCacheWrapper.__init__, locals(), {"float_workspace_buffer", "kv_layout", "backend"}
        )
        assert float_workspace_buffer.dtype == torch.uint8 and float_workspace_buffer.data_ptr() % 16 == 0
        assert kv_layout == "NHD" and backend in ("auto", "fa2", "fa3")
        self.device, self.backend = float_workspace_buffer.device, backend
        self.num_plans = 0
        self._planned: dict[str, Any] = {}

    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, head_dim_vo: Any = None,
        custom_mask: Any = None, packed_custom_mask: Any = None, causal: bool = False, pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False, sm_scale: Any = None, window_left: int = -1, logits_soft_cap: Any = None,
        rope_scale: Any = None, rope_theta: Any = None, q_data_type: Any = "float16", kv_data_type: Any = None,
        o_data_type: Any = None, non_blocking: bool = True, prefix_len_ptr: Any = None,
        token_pos_in_items_ptr: Any = None, token_pos_in_items_len: int = 0, max_item_len_ptr: Any = None,
        seq_lens: Any = None, seq_lens_q: Any = None, block_tables: Any = None, max_token_per_sequence: Any = None,
        max_sequence_kv: Any = None, fixed_split_size: Any = None, disable_split_kv: bool = False,
        uniform_q_len: Any = None,
    ) -> None:  # fmt: skip
        refuse_others(BatchPrefillWithPagedKVCacheWrapper.plan, locals(), PLAN_USED)
        rows = len(qo_indptr) - 1
        for tensor, size in ((qo_indptr, rows + 1), (paged_kv_indptr, rows + 1), (paged_kv_last_page_len, rows)):
            assert tensor.dtype == torch.int32 and tensor.device.type == "cpu" and tensor.shape == (size,)
        assert paged_kv_indices.dtype == torch.int32 and paged_kv_indices.device == self.device
        assert qo_indptr[0] == 0 == paged_kv_indptr[0] and paged_kv_indices.shape == (int(paged_kv_indptr[-1]),)
        assert bool((qo_indptr.diff() > 0).all()) and bool((paged_kv_indptr.diff() > 0).all())
        assert bool(((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all())
        assert num_qo_heads % num_kv_heads == 0 and head_dim_qk in (64, 128, 256) and causal
        assert q_data_type in HALF and kv_data_type in (q_data_type, torch.float8_e4m3fn)
        assert isinstance(sm_scale, float) and isinstance(logits_soft_cap, float) and window_left >= -1
        self.num_plans += 1
        self._planned = {name: value for name, value in locals().items() if name in PLAN_USED}

    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *args: Any, q_scale: Any = None, k_scale: Any = None,
        v_scale: Any = None, out: Any = None, lse: Any = None, return_lse: bool = False, lse_base: str = "log2",
        lse_layout: str = "NH", enable_pdl: Any = None, window_left: Any = None, sinks: Any = None,
        kv_cache_sf: Any = None, skip_softmax_threshold_scale_factor: Any = None, use_fp16_softmax: Any = None,
        uses_spcompress: Any = None,
    ) -> Any:  # fmt: skip
        used = {"q", "paged_kv_cache", "out", "return_lse"}
        refuse_others(BatchPrefillWithPagedKVCacheWrapper.run, locals(), used)
        planned, (keys, values) = self._planned, paged_kv_cache
        offsets, pages = planned["qo_indptr"], planned["paged_kv_indptr"]
        assert not args and isinstance(paged_kv_cache, tuple)
        assert q.shape == (int(offsets[-1]), planned["num_qo_heads"], planned["head_dim_qk"]) and q.stride(-1) == 1
        assert q.dtype == planned["q_data_type"] == out.dtype and out.shape == q.shape and out.is_contiguous()
        for cache in (keys, values):
            assert cache.dtype == planned["kv_data_type"] and cache.stride() == keys.stride() and cache.stride(-1) == 1
            assert cache.shape[1:] == (planned["page_size"], planned["num_kv_heads"], planned["head_dim_qk"])
        logsumexp = torch.empty(q.shape[:2])
        for row, last in enumerate(planned["paged_kv_last_page_len"].tolist()):
            tokens = slice(int(offsets[row]), int(offsets[row + 1]))
            own = planned["paged_kv_indices"][int(pages[row]) : int(pages[row + 1])]
            attended, sums = attend_pages(
                q[tokens], keys, values, own, (len(own) - 1) * planned["page_size"] + last, scale=planned["sm_scale"],
                keys_before=planned["window_left"], cap=planned["logits_soft_cap"],
            )  # fmt: skip
            out[tokens], logsumexp[tokens] = attended.to(out.dtype), (sums.T / math.log(2)).float()
        return (out, logsumexp) if return_lse else out


def stand_in() -> ModuleType:
    """Return a module for sys.modules["flashinfer"]."""
    module = ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = BatchPrefillWithPagedKVCacheWrapper  # type: ignore[attr-defined]
    return module
