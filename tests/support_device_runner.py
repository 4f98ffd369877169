"""Runners whose steps are given to a simulated device: attention that reads tensors only, on the CPU."""

from typing import Any

import pytest
import torch
from torch import Tensor

from chairlift.model.attention.base import AttentionSpec, PagedKV
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.registry import make_backend
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.runner import executor_and_cuda_graph_choice, torch_runner
from support_device_stream import SimulatedStream


class TensorAttention(ReferenceAttention):
    """Attention that reads tensors of the batch only, so that a graph can hold it; it gathers whole tables."""

    supports_cuda_graph = True

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: Any, out: Tensor
    ) -> None:
        tokens = torch.arange(len(query))
        row = torch.searchsorted(batch.cu_seqlens_q[1:].long(), tokens, right=True).clamp(max=batch.num_seqs - 1)
        table = batch.groups[spec.group].block_table[row].long()
        keys, values = (each[table].flatten(1, 2) for each in (kv.key, kv.value))
        group = query.shape[1] // keys.shape[2]
        keys, values = (each.repeat_interleave(group, 2) for each in (keys, values))
        ends = batch.positions + 1
        place = torch.arange(keys.shape[1])
        seen = place < ends[:, None]
        if spec.window is not None:
            seen &= place >= ends[:, None] - spec.window
        scores = torch.einsum("thd,tkhd->thk", query, keys) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
        weights = scores.softmax(-1)
        values = torch.where(seen[:, :, None, None], values, 0)
        out.copy_(torch.einsum("thk,tkhd->thd", weights, values))


def use_device(monkeypatch: pytest.MonkeyPatch, stream: SimulatedStream, attention: Any = None) -> None:
    """Let runners that start from now on give their steps to the stream."""
    monkeypatch.setattr(executor_and_cuda_graph_choice, "device_stream", lambda loaded: stream)
    monkeypatch.setattr(torch_runner, "make_backend", lambda *_, **options: attention or TensorAttention())


def use_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runners that start from now on compute on the host."""
    monkeypatch.setattr(executor_and_cuda_graph_choice, "device_stream", lambda loaded: None)
    monkeypatch.setattr(torch_runner, "make_backend", make_backend)
