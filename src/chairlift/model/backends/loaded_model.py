"""LoadedModel: a model in memory, with what a runner needs to compute steps with it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from chairlift.model.attention.base import AttentionBackend
from chairlift.model.backends.communicator import Communicator
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.layers.causal_lm_protocol import CausalLM
from chairlift.model.sampling.sampling_ops import SamplingOps, TorchSamplingOps


class KeptCodes(NamedTuple):
    """Packed weights, of which some or all have the codes of their file.

    Attributes:
        type: ggml's type of most codes.
        num_bytes: memory of the packed weights.
        names: the parameters in it.
    """

    type: str
    num_bytes: int
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        model: the model, its parameters on `device`.
        config: the model's config, with the dtype as loaded.
        device: device that computes steps.
        model_id: identifies the weights.
        attention: creates the attention backend of the layers; None for the backend of the options.
        chunk_tokens, cpus: see RunnerInfo.
        report: (name, value) pairs of the startup report.
        sampling_ops: operations that sample tokens from the logits.
        torch_threads: threads of torch in the engine thread, None for torch's default.
        weights_dtype: dtype of the weights, if it is another than that of activations and KV cache in `config`.
        kept: the weights whose codes are those of their file; None if all were dequantized or had none.
        communicator: collectives of a rank that has a part of the model; None for a whole model.
    """

    model: CausalLM
    config: ModelConfig
    device: torch.device
    model_id: str
    attention: Callable[[], AttentionBackend] | None = None
    chunk_tokens: int | None = None
    cpus: tuple[int, ...] = ()
    report: tuple[tuple[str, str], ...] = ()
    sampling_ops: SamplingOps = field(default_factory=TorchSamplingOps)
    torch_threads: int | None = None
    communicator: Communicator | None = None
    weights_dtype: str | None = None
    kept: KeptCodes | None = None

    @property
    def weights_config(self) -> ModelConfig:
        """The model's config with the dtype of the weights."""
        return self.config if self.weights_dtype is None else replace(self.config, dtype=self.weights_dtype)
