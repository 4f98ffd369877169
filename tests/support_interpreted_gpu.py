"""interpret_gpu: lets a float32 model on the CPU run what it runs on a GPU, by Triton's interpreter."""

import pytest

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
