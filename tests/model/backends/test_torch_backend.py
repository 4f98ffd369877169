"""TorchBackend: which processors it keeps busy, and what samples from its logits."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.loading.tiny_model import tiny_config
from chairlift.model.sampling.device.triton_sampling import TritonSamplingOps
from chairlift.model.sampling.sampling_ops import TorchSamplingOps

CPU = torch.device("cpu")
FIT = replace(tiny_config(), dtype="bfloat16")


def test_torch_keeps_all_processors_busy_if_it_has_a_thread_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = tuple(sorted(usable_cpus()))
    for threads, busy in ((len(usable), usable), (len(usable) - 1, ())):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert TorchBackend.best(torch.float32, CPU).cpus == busy
    assert TorchBackend.best(torch.float32, torch.device("meta")).cpus == ()


def test_torch_samples_by_the_kernels_of_a_gpu_that_has_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_found, kind in ((True, TritonSamplingOps), (False, TorchSamplingOps)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, is_found=is_found: is_found or None)
        assert type(TorchBackend.best(torch.float32, torch.device("cuda")).sampling_ops()) is kind
        assert type(TorchBackend.best(torch.float32, CPU).sampling_ops()) is TorchSamplingOps
