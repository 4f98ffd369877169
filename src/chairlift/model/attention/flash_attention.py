"""FlashAttention3: paged attention by the package flash-attn-3, for Hopper GPUs. It has not run on a GPU yet.

One call computes all rows of a layer, decodes and chunks. It reads lengths and tables on the device only, so that a
CUDA graph can hold it. What is used of the package, from hopper/flash_attn_interface.py and flash_api.cpp of
https://github.com/Dao-AILab/flash-attention:

    flash_attn_with_kvcache   q [T, heads, D], k_cache and v_cache [pages, page size, kv_heads, D] of any page size,
                              int32 cache_seqlens [S], page_table [S, W] and cu_seqlens_q [S + 1], all on the device
    window_size               (keys before a token that it sees, keys behind it); -1 means no limit
    causal                    counted from the end of a row's keys
    softcap                   0.0 is none
    return_softmax_lse        returns also the logarithms of the denominators, natural, float32 [heads, T]
    output                    a new tensor; tokens behind cu_seqlens_q[-1] are not written

torch's varlen_attn with activate_flash_attention_impl("FA3") calls the same package. By itself it has the kernels of
FlashAttention 2, whose pages have 256 tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from chairlift.model.attention.base import AttentionBackend, AttentionSpec, PagedKV
from chairlift.model.attention.external_attention_package import (
    ExternalAttentionPackage,
    LibraryAttention,
    apply_sinks,
    library_cache,
)
from chairlift.model.attention.visible_pages import visible_pages
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.config.attention_backend_names import LIBRARY_MODULES

FLASH_ATTENTION = ExternalAttentionPackage(
    backend="fa3",
    package="flash-attn-3",
    module=LIBRARY_MODULES["fa3"],
    install="install flash-attn-3 from PyTorch's wheels, or build it from Dao-AILab/flash-attention (folder hopper)",
    capabilities=(90, 100),
    dtypes=("bfloat16", "float16"),
    head_dims=range(8, 257, 8),
    has_float8=False,
)

PARAMETERS = (
    "q", "k_cache", "v_cache", "cache_seqlens", "page_table", "cu_seqlens_q", "max_seqlen_q", "softmax_scale",
    "causal", "window_size", "softcap", "return_softmax_lse",
)  # fmt: skip
"""Parameters of flash_attn_with_kvcache that are used."""


def flash_attention_factory(device: str, dtype: str) -> Callable[[], "FlashAttention3"]:
    """Return what creates the backend for a device and the dtype of queries.

    Raises ConfigError if the package is missing, or cannot run there.
    """
    FLASH_ATTENTION.check_device(device, dtype)
    function = find_flash_attention()
    return lambda: FlashAttention3(function, library_cache(torch.device(device)))


def find_flash_attention() -> Callable[..., Any]:
    """Return the package's function. Raises ConfigError if it is missing, or lacks a parameter."""
    return FLASH_ATTENTION.find(FLASH_ATTENTION.load(), "flash_attn_with_kvcache", PARAMETERS)


@dataclass(slots=True)
class FlashPlan:
    """What the layers of a step share.

    Attributes:
        pages: by (group, window), the pages and lengths of visible_pages.
        is_padding: bool [T, 1, 1], tokens behind the last row; None where the host knows them.
    """

    pages: dict[tuple[int, int | None], tuple[Tensor, Tensor]] = field(default_factory=dict)
    is_padding: Tensor | None = None


class FlashAttention3(LibraryAttention):
    """AttentionBackend in bfloat16 and float16, for NVIDIA GPUs of compute capability 9.x (Hopper).

    Sinks cost one more operation a layer: the package has none, so that its result is scaled.
    """

    supports_cuda_graph = True

    def __init__(self, attention: Callable[..., Any], cache: AttentionBackend) -> None:
        """Store the package's function flash_attn_with_kvcache, and what writes the cache (library_cache)."""
        super().__init__(FLASH_ATTENTION, cache)
        self._attention = attention
        self._has_run = False

    def plan(self, batch: ForwardBatch) -> FlashPlan:
        """Return a plan whose pages are computed when a layer needs them."""
        if batch.cu_q_list:
            return FlashPlan()
        tokens = torch.arange(batch.num_tokens, dtype=torch.int32, device=batch.cu_seqlens_q.device)
        return FlashPlan(is_padding=(tokens >= batch.cu_seqlens_q[-1])[:, None, None])

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: FlashPlan, out: Tensor
    ) -> None:
        """Attend query [T, heads, head_dim] to the cache, causally, into out (same shape); padding gets zeros.

        Raises ConfigError if the package fails in the first call.
        """
        # The step of a CUDA graph has no lists: then only the device knows which tokens are padding.
        num_real = batch.cu_q_list[-1] if batch.cu_q_list else batch.num_tokens
        real = out[:num_real]
        result = self._call(query[:num_real], kv, batch, spec, plan)
        if spec.sinks is None:
            real.copy_(result)
        else:
            apply_sinks(result[0], result[1].T, spec.sinks, real)
        if plan.is_padding is not None:
            real.masked_fill_(plan.is_padding, 0)
        out[num_real:] = 0

    def _call(self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: FlashPlan) -> Any:
        """Return the package's output [T, heads, head_dim]; for sinks a tuple of it, logarithms [heads, T] and more."""
        kind = (spec.group, spec.window)
        if kind not in plan.pages:
            plan.pages[kind] = visible_pages(batch, *kind, kv.key.shape[1])
        pages, lengths = plan.pages[kind]
        # Only the first call can tell what the package refuses; a later error is one of the step.
        attention = self._attention if self._has_run else FLASH_ATTENTION.refusing(self._attention)
        result = attention(
            q=query, k_cache=kv.key, v_cache=kv.value, cache_seqlens=lengths, page_table=pages,
            cu_seqlens_q=batch.cu_seqlens_q, max_seqlen_q=batch.max_seqlen_q, softmax_scale=spec.scale, causal=True,
            window_size=(-1, -1) if spec.window is None else (spec.window - 1, 0), softcap=spec.softcap or 0.0,
            return_softmax_lse=spec.sinks is not None,
        )  # fmt: skip
        self._has_run = True
        return result
