"""FlashInferAttention: paged attention by the package flashinfer-python. It has not run on a GPU yet.

Each kind of layer (group, window, soft cap, scale) has two wrappers of the package, for rows with one token and for
chunks. The first layer of a kind plans the step on the host, from the lists of the batch; the others run by the plan.
So no CUDA graph can hold a step. What is used of the package, from flashinfer/prefill.py of version 0.7.2:

    BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout, backend)
    plan    qo_indptr [B + 1], paged_kv_indptr [B + 1] and paged_kv_last_page_len [B], int32 on the host;
            paged_kv_indices, int32 on the device; sizes, dtypes and scale; causal, from the end of the keys;
            logits_soft_cap, 0 for none; window_left: keys before a token that it sees, -1 for all
    run     q [T, heads, D], paged_kv_cache (keys, values) of NHD [pages, page size, kv_heads, D], contiguous out;
            return_lse adds the logarithms of the denominators, base 2, float32 [T, heads]

Its decode wrapper runs the same kernels on tensor cores. Its `sinks` are used by one of its kernels only, so that
sinks are applied here.
"""

import math
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
from chairlift.model.attention.visible_pages import list_pages
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.config.attention_backend_names import LIBRARY_MODULES
from chairlift.model.device.device_stream import CudaStream, Event
from chairlift.model.device.pinned_copy import copy_from_pinned

FLASHINFER = ExternalAttentionPackage(
    backend="flashinfer",
    package="flashinfer-python",
    module=LIBRARY_MODULES["flashinfer"],
    install="run: pip install --upgrade flashinfer-python",
    capabilities=(80, None),
    dtypes=("bfloat16", "float16"),
    head_dims=(64, 128, 256),
    has_float8=True,
)

WRAPPER_PARAMETERS = ("float_workspace_buffer", "kv_layout", "backend")
PLAN_PARAMETERS = (
    "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads", "num_kv_heads",
    "head_dim_qk", "page_size", "causal", "sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type",
)  # fmt: skip
RUN_PARAMETERS = ("q", "paged_kv_cache", "out", "return_lse")
"""Parameters of the wrapper and its methods that are used."""

WORKSPACE_BYTES = 384 * 2**20
"""Bytes for partial results of rows whose keys are divided; too few are an error in a large batch."""

DECODE_KERNELS, CHUNK_KERNELS = "fa2", "auto"
"""Kernels of the package: for rows with one token those that its decode wrapper takes, for chunks its own choice."""

Kind = tuple[int, int | None, float | None, float]
"""Group, window, soft cap and scale of a layer."""


def flashinfer_factory(device: str, dtype: str) -> Callable[[], "FlashInferAttention"]:
    """Return what creates the backend for a device and the dtype of queries.

    Raises ConfigError if the package is missing, or cannot run there.
    """
    FLASHINFER.check_device(device, dtype)
    wrapper, where = find_wrapper(), torch.device(device)
    return lambda: FlashInferAttention(wrapper, library_cache(where), where)


def find_wrapper() -> Callable[..., Any]:
    """Return the package's class. Raises ConfigError if it is missing, or lacks a parameter."""
    wrapper = FLASHINFER.find(FLASHINFER.load(), "BatchPrefillWithPagedKVCacheWrapper", WRAPPER_PARAMETERS)
    FLASHINFER.find(wrapper, "plan", PLAN_PARAMETERS)
    FLASHINFER.find(wrapper, "run", RUN_PARAMETERS)
    return wrapper


@dataclass(slots=True)
class _Wrapper:
    """A wrapper of the package, and the copy of its last plan to the device.

    Attributes:
        wrapper: the package's object; it keeps the plan in pinned memory of its own.
        copied: recorded behind the last plan's copies; None where there is no GPU.
        has_run: whether the package has run it.
    """

    wrapper: Any
    copied: Event | None
    has_run: bool = False


@dataclass(frozen=True, slots=True)
class FlashInferPlan:
    """What the layers of a step share.

    Attributes:
        planned: kinds of layers, and whether for rows with one token, whose wrappers have planned this step.
    """

    planned: set[tuple[Kind, bool]] = field(default_factory=set)


class FlashInferAttention(LibraryAttention):
    """AttentionBackend in bfloat16 and float16, for NVIDIA GPUs of compute capability 8.0 and higher.

    Owns: the package's workspace and wrappers. Sinks cost one more operation a layer.
    """

    supports_cuda_graph = False

    def __init__(self, make_wrapper: Callable[..., Any], cache: AttentionBackend, device: torch.device) -> None:
        """Allocate the workspace.

        Args:
            make_wrapper: the package's class BatchPrefillWithPagedKVCacheWrapper.
            cache: what writes the cache (library_cache).
            device: the device of the cache.
        """
        super().__init__(FLASHINFER, cache)
        self._make_wrapper, self._device = make_wrapper, device
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[tuple[Kind, bool], _Wrapper] = {}

    def plan(self, batch: ForwardBatch) -> FlashInferPlan:
        """Return a plan of no layer yet."""
        return FlashInferPlan()

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: FlashInferPlan, out: Tensor
    ) -> None:
        """Attend query [T, heads, head_dim] to the cache, causally, into out (same shape); padding gets zeros.

        Raises ConfigError if the package fails in the first call of a kind of layer.
        """
        cu_q, target = batch.cu_q_list, out if out.is_contiguous() else torch.empty_like(query).contiguous()
        for rows, is_decode in (
            (range(batch.num_decodes), True), (range(batch.num_decodes, batch.num_seqs), False)
        ):  # fmt: skip
            if not rows:
                continue
            tokens = slice(cu_q[rows.start], cu_q[rows.stop])
            wrapper = self._planned(rows, is_decode, query, kv, batch, spec, plan)
            self._run(wrapper, query[tokens], kv, spec, target[tokens])
        target[cu_q[-1] :] = 0
        if target is not out:
            out.copy_(target)

    def _planned(
        self, rows: range, is_decode: bool, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec,
        plan: FlashInferPlan,
    ) -> _Wrapper:  # fmt: skip
        """Return the wrapper of a layer's kind, planned for these rows of the step."""
        # A plan of the package holds all of these, so layers that differ in one cannot share it.
        key = ((spec.group, spec.window, spec.softcap, spec.scale), is_decode)
        if key not in self._wrappers:
            kernels = DECODE_KERNELS if is_decode else CHUNK_KERNELS
            # All wrappers share the workspace: their kernels run one after another on one stream.
            made = self._make_wrapper(float_workspace_buffer=self._workspace, kv_layout="NHD", backend=kernels)
            event = CudaStream().make_event() if self._device.type == "cuda" else None
            self._wrappers[key] = _Wrapper(made, event)
        wrapper = self._wrappers[key]
        if key in plan.planned:
            return wrapper
        if wrapper.copied is not None:
            wrapper.copied.synchronize()  # the package would write over numbers that are not copied yet
        pages = list_pages(batch, rows, spec.group, spec.window, kv.key.shape[1])
        cu_q = torch.tensor(batch.cu_q_list[rows.start : rows.stop + 1], dtype=torch.int32)
        table = batch.groups[spec.group].block_table.reshape(-1)
        make_plan = wrapper.wrapper.plan if wrapper.has_run else FLASHINFER.refusing(wrapper.wrapper.plan)
        make_plan(
            qo_indptr=cu_q - cu_q[0], paged_kv_indptr=torch.from_numpy(pages.offsets),
            paged_kv_indices=table.index_select(0, copy_from_pinned(pages.entries, table.device)),
            paged_kv_last_page_len=torch.from_numpy(pages.last_sizes), num_qo_heads=query.shape[1],
            num_kv_heads=kv.key.shape[2], head_dim_qk=query.shape[2], page_size=kv.key.shape[1], causal=True,
            sm_scale=spec.scale, window_left=-1 if spec.window is None else spec.window - 1,
            logits_soft_cap=spec.softcap or 0.0, q_data_type=query.dtype, kv_data_type=kv.key.dtype,
        )  # fmt: skip
        if wrapper.copied is not None:
            wrapper.copied.record()
        plan.planned.add(key)
        return wrapper

    def _run(self, wrapper: _Wrapper, query: Tensor, kv: PagedKV, spec: AttentionSpec, out: Tensor) -> None:
        """Run the rows of a planned wrapper: query and out are [T, heads, head_dim] of their tokens."""
        run = wrapper.wrapper.run if wrapper.has_run else FLASHINFER.refusing(wrapper.wrapper.run)
        result = run(q=query, paged_kv_cache=(kv.key, kv.value), out=out, return_lse=spec.sinks is not None)
        wrapper.has_run = True
        if spec.sinks is not None:
            apply_sinks(out, result[1] * math.log(2), spec.sinks, out)
