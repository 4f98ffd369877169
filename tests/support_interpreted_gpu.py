"""interpret_gpu: lets a float32 model on the CPU run what it runs on a GPU, by Triton's interpreter."""

import pytest
import torch

from chairlift.model import model_backend
from chairlift.model.kernels.cuda.triton_sampling import TritonSamplingOps
from chairlift.model.layers.batch_invariant_ops import BatchInvariantOps
from chairlift.model.layers.triton_ops import TritonOps
from chairlift.model.runner import torch_runner
from chairlift.model.runner.device_input_batch import DeviceInputBatch
from chairlift.model.runner.loaded_model import LoadedModel
from chairlift.model.runner.runner_config import RunnerConfig
from support_step_plans import RecordedEvent


def interpret_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what is chosen for a CPU by what is chosen for a GPU: layers, sampling and inputs of steps.

    The option `attention_backend` must be triton.
    """

    def make_input_batch(loaded: LoadedModel, config: RunnerConfig, *, writes: bool = True) -> DeviceInputBatch:
        model = loaded.model
        return DeviceInputBatch(
            config.max_running_requests, len(model.groups.windows), config.block_size, model.vocab_size,
            device=torch.device("cpu"), writes=writes, padded=model.padded_size, make_event=lambda: RecordedEvent([]),
            max_model_len=loaded.config.context_length(config.max_model_len),
        )  # fmt: skip

    monkeypatch.setattr(model_backend, "ops_for", lambda dtype, device: TritonOps())
    monkeypatch.setattr(model_backend, "batch_invariant_ops_for", lambda dtype, device: BatchInvariantOps())
    monkeypatch.setattr(model_backend, "sampling_ops_for", lambda device: TritonSamplingOps())
    monkeypatch.setattr(torch_runner, "make_input_batch", make_input_batch)
