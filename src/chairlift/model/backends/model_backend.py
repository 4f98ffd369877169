"""ModelBackend: the protocol of what runs the decoder that an architecture built, and lays out its weights."""

from collections.abc import Callable
from typing import Protocol

import torch

from chairlift.model.attention.base import AttentionBackend
from chairlift.model.backends.loaded_model import KeptCodes
from chairlift.model.layers.causal_lm_protocol import CausalLM
from chairlift.model.layers.decoder import DecoderSpec
from chairlift.model.sampling.sampling_ops import SamplingOps
from chairlift.model.weights.parameter_loader import ParameterLoader


class ModelBackend(Protocol):
    """One way to run a decoder.

    Attributes:
        chunk_tokens, cpus: see RunnerInfo.
    """

    @property
    def chunk_tokens(self) -> int | None:
        """Preferred number of prompt tokens of one step, None for any number."""
        ...

    @property
    def cpus(self) -> tuple[int, ...]:
        """Processors that the backend keeps busy."""
        ...

    @property
    def torch_threads(self) -> int | None:
        """Threads that torch may use in the engine thread, None for torch's default."""
        ...

    @property
    def kept(self) -> KeptCodes | None:
        """See LoadedModel."""
        ...

    def wrap_loader(self, loader: ParameterLoader) -> ParameterLoader:
        """Return a ParameterLoader that returns weights in the backend's layout."""
        ...

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of cosines and sines for a model of `dtype`."""
        ...

    def compute_dtype(self, dtype: str) -> str:
        """Return the dtype of hidden states and KV cache for a model whose weights are loaded in `dtype`."""
        ...

    def decoder(self, parts: DecoderSpec) -> CausalLM:
        """Build the decoder."""
        ...

    def attention(self) -> Callable[[], AttentionBackend] | None:
        """Return a factory of the attention backend of its decoders; None if every backend works."""
        ...

    def sampling_ops(self) -> SamplingOps:
        """Return the operations that sample tokens from its logits."""
        ...

    def report(self) -> tuple[tuple[str, str], ...]:
        """Return (name, value) pairs of the startup report."""
        ...
