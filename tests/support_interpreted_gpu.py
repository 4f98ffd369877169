"""interpret_gpu: lets a float32 model on the CPU run what it runs on a GPU, by Triton's interpreter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.backends import torch_backend
from chairlift.model.layers.batch_invariant_ops import BatchInvariantOps
from chairlift.model.layers.triton_ops import TritonOps
from chairlift.model.runner import executor_and_cuda_graph_choice
from chairlift.model.sampling.device.triton_sampling import TritonSamplingOps
from support_device_stream import ImmediateStream


def interpret_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what is chosen for a CPU by what is chosen for a GPU: layers, sampling, inputs of steps, and graphs.

    The option `attention_backend` must be triton.
    """

    monkeypatch.setattr(torch_backend, "ops_for", lambda dtype, device: TritonOps())
    monkeypatch.setattr(torch_backend, "batch_invariant_ops_for", lambda dtype, device: BatchInvariantOps())
    monkeypatch.setattr(torch_backend, "sampling_ops_for", lambda device: TritonSamplingOps())
    monkeypatch.setattr(executor_and_cuda_graph_choice, "device_stream", lambda loaded: ImmediateStream())


def compute_elements_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch round sigmoids, SiLU and softplus alike at every place of a tensor, as GPUs do.

    On a CPU it has vectors for most elements and other instructions for those behind the last whole vector.
    """

    def rounded_once(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: function(x.double()).to(x.dtype)

    for owner, name in ((torch, "sigmoid"), (Tensor, "sigmoid"), (functional, "silu"), (functional, "softplus")):
        monkeypatch.setattr(owner, name, rounded_once(getattr(owner, name)))
