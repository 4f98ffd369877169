"""ThreadCheckedAttention: an attention backend that adapts the number of torch's threads before each layer."""

from typing import Any

import torch
from torch import Tensor

from chairlift.model.attention.base import AttentionBackend, AttentionSpec, PagedKV
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.device.step_thread_count import StepThreadCount


class ThreadCheckedAttention:
    """An AttentionBackend that passes every call to another one.

    A step with a long prompt takes seconds, and minutes with threads that other programs displace, so the end of a step
    is too late to notice these.
    """

    def __init__(self, inner: AttentionBackend, threads: StepThreadCount) -> None:
        self._inner, self._threads = inner, threads
        self.has_plain_kv, self.supports_cuda_graph = inner.has_plain_kv, inner.supports_cuda_graph

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """See AttentionBackend."""
        return self._inner.allocate_kv_cache(layers, num_blocks, block_size, kv_heads, head_dim, dtype, device)

    def plan(self, batch: ForwardBatch) -> Any:
        """See AttentionBackend."""
        return self._inner.plan(batch)

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """See AttentionBackend."""
        self._inner.write_kv(key, value, kv, slot_mapping)

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """See AttentionBackend."""
        self._inner.copy_blocks(kv, pairs)

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: Any, out: Tensor
    ) -> None:
        """See AttentionBackend; the number of threads may change before."""
        self._threads.check_in_step()
        self._inner.attend(query, kv, batch, spec, plan, out)
