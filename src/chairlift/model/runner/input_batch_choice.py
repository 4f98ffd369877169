"""make_input_batch: what makes the inputs of a step: numpy on the host, or kernels on a CUDA device."""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.engine.step_plan import Int32, StepPlan
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.batch.input_batch import SlotBlockTables, StepInputs
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.device.device_stream import CudaStream, DeviceStream
from chairlift.model.device.triton_package import can_use_triton
from chairlift.model.layers.causal_lm_protocol import TakesAdapters


class InputBatch(Protocol):
    """The block table of each slot's sequence and the token it sampled last; makes the inputs of steps from them."""

    def apply(self, plan: StepPlan) -> None:
        """Apply a plan's released slots, new sequences and new blocks."""
        ...

    def inputs(self, plan: StepPlan, device: torch.device) -> StepInputs:
        """Make the inputs of a step whose plan was applied. Raises TokenOutOfRange for an id outside the vocabulary."""
        ...

    def store_sampled(self, slots: NDArray[np.int64], tokens: Int32) -> None:
        """Store the token that each slot sampled."""
        ...


def make_input_batch(
    loaded: LoadedModel, config: RunnerConfig, stream: DeviceStream | None = None, *, writes: bool = True
) -> InputBatch:
    """Return what makes the inputs of a loaded model's steps, on the device of a stream where there is one.

    Without a stream these are CUDA devices on which Triton's kernels run, but for a model with adapters, whose rows the
    host names. Without `writes` no token is written to the cache.
    """
    model, slots, groups = loaded.model, config.max_running_requests, len(loaded.model.groups.windows)
    if stream is None and not isinstance(model, TakesAdapters) and can_use_triton(loaded.device):
        stream = CudaStream()
    if stream is not None:
        from chairlift.model.runner.device_input_batch import DeviceInputBatch

        return DeviceInputBatch(
            slots, groups, config.block_size, model.vocab_size, device=loaded.device, stream=stream,
            max_model_len=loaded.config.context_length(config.max_model_len), padded=model.padded_size, writes=writes,
        )  # fmt: skip
    return SlotBlockTables(
        slots, groups, config.block_size, model.vocab_size, writes=writes, padded=model.padded_size
    )  # fmt: skip


def host_tables(batch: InputBatch) -> SlotBlockTables:
    """Return an input batch on the host, as models that take step plans need it."""
    assert isinstance(batch, SlotBlockTables), "a model of the native kernels runs on the CPU"
    return batch
