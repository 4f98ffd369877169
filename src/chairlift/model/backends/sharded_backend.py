"""ShardedBackend: runs one rank's part of a decoder in torch, with collectives where the parts meet.

    embedding          each rank looks up its own rows, zeros elsewhere     all_reduce
    after attention    each rank has the output of its own heads            all_reduce
    after the MLP      each rank has the output of its own neurons          all_reduce
    lm_head            each rank has the logits of its own rows             all_gather

So every rank has the same hidden states between two layers, the same logits, and samples the same tokens.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.model.backends.communicator import Communicator
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.batch.state_cache import LayerStates
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.device.dtypes import torch_dtype
from chairlift.model.layers.causal_lm_protocol import CausalLM, ForwardContext
from chairlift.model.layers.decoder import DecoderSpec, TorchDecoder
from chairlift.model.layers.ops import Ops, RotateAndWrite
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest, compute_lm_head_output
from chairlift.model.sampling.sampling_ops import SamplingOps
from chairlift.model.weights.expert_weights import ExpertWeights
from chairlift.model.weights.linear_weight import LinearWeight
from chairlift.model.weights.parameter_loader import ParameterLoader


@dataclass(frozen=True, slots=True)
class ShardedOps:
    """Ops of one rank: those of `inner`, but the embedding and the sum over ranks are collectives."""

    inner: Ops
    communicator: Communicator

    @property
    def rotate_and_write(self) -> RotateAndWrite | None:
        """See Ops."""
        return self.inner.rotate_and_write

    @property
    def state_chunk_tokens(self) -> int:
        """See Ops."""
        return self.inner.state_chunk_tokens

    def padded_size(self, num_tokens: int) -> int:
        """See Ops."""
        return self.inner.padded_size(num_tokens)

    def pack(self, weight: Tensor) -> Tensor:
        """See Ops."""
        return self.inner.pack(weight)

    def embed(self, input_ids: Tensor, table: Tensor) -> Tensor:
        """See Ops; the table [V / ranks, H] has this rank's rows of the vocabulary."""
        own = input_ids - self.communicator.shard.rank * len(table)
        elsewhere = (own < 0) | (own >= len(table))
        rows = self.inner.embed(own.masked_fill(elsewhere, 0), table)
        return self.communicator.all_reduce(rows.masked_fill(elsewhere[:, None], 0))

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        """See Ops."""
        return self.inner.linear(x, weight, bias)

    def sum_over_ranks(self, x: Tensor) -> Tensor:
        """See Ops."""
        return self.communicator.all_reduce(x)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return self.inner.rms_norm(x, weight, eps)

    def rms_norm_float32(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return self.inner.rms_norm_float32(x, weight, eps)

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        return self.inner.add_rms_norm(x, y, weight, eps)

    def add_rms_norm_float32(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        return self.inner.add_rms_norm_float32(x, y, weight, eps)

    def gated_activation(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """See Ops."""
        return self.inner.gated_activation(gate, up, activation)

    def sum_of_experts(self, x: Tensor, experts: Tensor, factors: Tensor, weights: ExpertWeights) -> Tensor:
        """See Ops: of this rank's part of each expert."""
        return self.inner.sum_of_experts(x, experts, factors, weights)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See Ops."""
        return self.inner.rotate(x, cos, sin)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """See Ops."""
        return self.inner.softcap(logits, cap)

    def run_recurrence(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None, states: LayerStates,
        step: StateStep,
    ) -> Tensor:  # fmt: skip
        """See Ops; the heads are this rank's."""
        return self.inner.run_recurrence(query, key, value, decay, beta, states, step)


class ShardedDecoder:
    """A CausalLM (layers/causal_lm_protocol.py) of one rank, whose logits are those of the whole model.

    Attributes:
        groups, state_shapes: see CausalLM.
        vocab_size: ids of the whole model.
    """

    def __init__(self, own: TorchDecoder, communicator: Communicator, vocab_size: int) -> None:
        self.groups = own.groups
        self.vocab_size = vocab_size
        self.state_shapes = own.state_shapes
        self._own = own
        self._communicator = communicator

    def padded_size(self, num_tokens: int) -> int:
        """See CausalLM."""
        return self._own.padded_size(num_tokens)

    def forward(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """See CausalLM; the hidden states are those of the whole model."""
        return self._own.forward(input_ids, context)

    def logits(self, hidden: Tensor) -> Tensor:
        """See CausalLM; the last ids of the last rank are padding."""
        return self._communicator.gather_columns(self._own.logits(hidden))[:, : self.vocab_size].contiguous()

    def head(self, hidden: Tensor, request: LogitsRequest) -> LMHeadOutput:
        """See CausalLM."""
        return compute_lm_head_output(self.logits(hidden), request)


@dataclass(frozen=True, slots=True)
class ShardedBackend:
    """A ModelBackend (model_backend.py) of one rank.

    Attributes:
        inner: the backend of a whole model in torch.
        communicator: the collectives of the rank.
        vocab_size: ids of the whole model.
    """

    inner: TorchBackend
    communicator: Communicator
    vocab_size: int

    @classmethod
    def of(
        cls, model: DecoderConfig, communicator: Communicator, device: torch.device, *, deterministic: bool = False,
        quantization: str = "none",
    ) -> "ShardedBackend":  # fmt: skip
        """Return the backend of a model, whose config has the dtype as loaded; the options as TorchBackend.best."""
        kind = torch_dtype(model.dtype)
        inner = TorchBackend.best(kind, device, deterministic=deterministic, quantization=quantization)
        ranks = communicator.shard.num_ranks
        threads = None
        if device.type == "cpu":
            threads = max(1, min(torch.get_num_threads(), len(usable_cpus()) // ranks))
        return cls(replace(inner, why=f"torch on {ranks} ranks", torch_threads=threads), communicator, model.vocab_size)

    @property
    def chunk_tokens(self) -> int | None:
        """See ModelBackend."""
        return self.inner.chunk_tokens

    @property
    def cpus(self) -> tuple[int, ...]:
        """See ModelBackend."""
        return self.inner.cpus

    @property
    def torch_threads(self) -> int | None:
        """See ModelBackend; the ranks share the CPUs of this machine."""
        return self.inner.torch_threads

    @property
    def kept(self) -> None:
        """See ModelBackend: not reported, weights have the dequantized numbers."""

    def wrap_loader(self, loader: ParameterLoader) -> ParameterLoader:
        """See ModelBackend; between two parameters the loader raises if another rank is lost."""
        wrapped = self.inner.wrap_loader(loader)

        def read(name: str, shape: tuple[int, ...]) -> Tensor:
            self.communicator.check_others()
            return wrapped.read(name, shape)

        return replace(wrapped, read=read)

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """See ModelBackend."""
        return self.inner.rope_dtype(dtype)

    def compute_dtype(self, dtype: str) -> str:
        """See ModelBackend."""
        return self.inner.compute_dtype(dtype)

    def decoder(self, parts: DecoderSpec) -> CausalLM:
        """See ModelBackend; the parts are those of this rank."""
        own = TorchDecoder(parts, ShardedOps(self.inner.ops, self.communicator))
        return ShardedDecoder(own, self.communicator, self.vocab_size)

    def attention(self) -> None:
        """See ModelBackend: every attention backend works."""

    def sampling_ops(self) -> SamplingOps:
        """See ModelBackend."""
        return self.inner.sampling_ops()

    def report(self) -> tuple[tuple[str, str], ...]:
        """See ModelBackend."""
        return self.inner.report()
