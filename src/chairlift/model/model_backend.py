"""ModelBackend: runs the decoder that an architecture built, and decides the layout of its weights."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch

from chairlift.core.cpu_affinity import usable_cpus
from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend
from chairlift.model.attention.registry import AUTO
from chairlift.model.dtypes import AUTO_DTYPE, torch_dtype
from chairlift.model.layers.causal_lm import CausalLM
from chairlift.model.layers.decoder import DecoderSpec, TorchDecoder
from chairlift.model.layers.float8_linear import check_products
from chairlift.model.layers.float8_packer import Float8Packer
from chairlift.model.layers.fused_ops import batch_invariant_ops_for, ops_for
from chairlift.model.layers.ops import Ops
from chairlift.model.loading.decoder_config import DecoderConfig
from chairlift.model.loading.parameter_loader import ParameterLoader
from chairlift.model.runner.runner_config import FLOAT8_QUANTIZATION, NATIVE_QUANTIZATIONS, RunnerConfig
from chairlift.model.sampling.sampling_ops import SamplingOps, TorchSamplingOps
from chairlift.model.triton_package import can_use_triton


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

    def wrap_loader(self, loader: ParameterLoader) -> ParameterLoader:
        """Return a ParameterLoader that returns weights in the backend's layout."""
        ...

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of cosines and sines for a model of `dtype`."""
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


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """A ModelBackend that runs operation by operation in torch, on any device, in any dtype.

    Attributes:
        ops: operations of the layers.
        why: reason for choosing it, for the startup report.
        chunk_tokens, cpus: see RunnerInfo.
        torch_threads: see ModelBackend.
        sampler: operations that sample tokens.
        float8: quantizes the weights of the layers; None leaves them as they are.
    """

    ops: Ops
    why: str = "torch"
    chunk_tokens: int | None = None
    torch_threads: int | None = None
    cpus: tuple[int, ...] = ()
    sampler: SamplingOps = field(default_factory=TorchSamplingOps)
    float8: Float8Packer | None = None

    @classmethod
    def best(
        cls, dtype: torch.dtype, device: torch.device, *, deterministic: bool = False, quantization: str = "none"
    ) -> "TorchBackend":
        """Return the fastest torch backend for a dtype on a device.

        With `deterministic` it is the one that gives a row the same bits in every batch; with the quantization "fp8"
        the weights of layers are 8-bit floats. Raises ConfigError where there is none.
        """
        cpus = usable_cpus() if device.type == "cpu" else frozenset()
        is_full = len(cpus) <= torch.get_num_threads()
        busy = tuple(sorted(cpus)) if is_full else ()
        ops = batch_invariant_ops_for(dtype, device) if deterministic else ops_for(dtype, device)
        float8 = None
        if quantization == FLOAT8_QUANTIZATION:
            check_products(dtype, device)
            float8 = Float8Packer(ops.pack)
        return cls(ops, cpus=busy, sampler=sampling_ops_for(device), float8=float8)

    def wrap_loader(self, loader: ParameterLoader) -> ParameterLoader:
        """See ModelBackend."""
        pack = self.float8 or (lambda parts, read, *, gated: self.ops.pack(loader.concat(parts)))
        return replace(loader, pack=pack)

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """See ModelBackend: the model's own dtype, as in transformers."""
        return dtype

    def decoder(self, parts: DecoderSpec) -> CausalLM:
        """See ModelBackend."""
        return TorchDecoder(parts, self.ops)

    def attention(self) -> None:
        """See ModelBackend: every attention backend works."""

    def sampling_ops(self) -> SamplingOps:
        """See ModelBackend."""
        return self.sampler

    def report(self) -> tuple[tuple[str, str], ...]:
        """See ModelBackend."""
        kernels = ("kernels", self.why)
        return (kernels,) if self.float8 is None else (kernels, ("quantization", self.float8.report()))


def select_backend(
    config: RunnerConfig, model: DecoderConfig, device: torch.device, name: str | None = None
) -> ModelBackend:
    """Choose the backend of a model by the options; `model` has the dtype as loaded, `name` identifies its weights.

    Raises ConfigError if native kernels are required, by name or for a quantization, and cannot run the model, and for
    the option `deterministic` where rows depend on their batch.
    """
    from chairlift.model.kernels.cpu.native_backend import NativeBackend, check_fit

    needed, why = config.kernels == "native" or config.quantization in NATIVE_QUANTIZATIONS, "torch"
    if config.quantization == FLOAT8_QUANTIZATION:
        why = f"torch (quantization is {config.quantization})"
    elif config.kv_cache_dtype != AUTO_DTYPE:
        why = f"torch (kv_cache_dtype is {config.kv_cache_dtype})"
    elif config.kernels != "torch" and config.attention_backend == AUTO:
        try:
            check_fit(model, device, config.block_size)
            packed_file = None
            if config.packed_weights_dir is not None and name is not None:
                packed_file = Path(config.packed_weights_dir).expanduser() / f"{name}.packed"
            return NativeBackend(config.quantization, config.cpu_threads, packed_file)
        except ConfigError as error:
            if needed:
                raise
            why = f"torch ({error.message})"
    backend = TorchBackend.best(
        torch_dtype(model.dtype), device, deterministic=config.deterministic, quantization=config.quantization
    )
    return replace(backend, why=why)


def sampling_ops_for(device: torch.device) -> SamplingOps:
    """Return the fastest implementation on a device for models that torch runs."""
    if not can_use_triton(device):
        return TorchSamplingOps()
    from chairlift.model.kernels.cuda.triton_sampling import TritonSamplingOps

    return TritonSamplingOps()
