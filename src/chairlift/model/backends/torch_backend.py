"""TorchBackend: runs a decoder operation by operation in torch, on any device."""

from dataclasses import dataclass, field, replace

import torch

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.model.config.runner_config import FILE_QUANTIZATION, FLOAT8_QUANTIZATION
from chairlift.model.device.triton_package import can_use_triton
from chairlift.model.kernels.float8_linear import check_products
from chairlift.model.layers.adapted_decoder import AdaptedDecoder
from chairlift.model.layers.causal_lm_protocol import CausalLM
from chairlift.model.layers.decoder import DecoderSpec, TorchDecoder
from chairlift.model.layers.ops import Ops
from chairlift.model.layers.select_ops import batch_invariant_ops_for, ops_for
from chairlift.model.sampling.sampling_ops import SamplingOps, TorchSamplingOps
from chairlift.model.weights.float8_packer import Float8Packer
from chairlift.model.weights.int4_packer import Int4Packer
from chairlift.model.weights.parameter_loader import ParameterLoader


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """A ModelBackend that runs operation by operation in torch, on any device, in any dtype.

    Attributes:
        ops: operations of the layers.
        why: reason for choosing it, for the startup report.
        chunk_tokens, cpus: see RunnerInfo.
        torch_threads: see ModelBackend.
        sampler: operations that sample tokens.
        adapts: whether rows may have LoRA adapters.
        packer: quantizes the weights of the layers, or keeps their codes; None leaves them as they are.
    """

    ops: Ops
    why: str = "torch"
    chunk_tokens: int | None = None
    torch_threads: int | None = None
    cpus: tuple[int, ...] = ()
    sampler: SamplingOps = field(default_factory=TorchSamplingOps)
    packer: Float8Packer | Int4Packer | None = None
    adapts: bool = False

    @classmethod
    def best(
        cls, dtype: torch.dtype, device: torch.device, *, deterministic: bool = False, quantization: str = "none"
    ) -> "TorchBackend":
        """Return the fastest torch backend for a dtype on a device.

        With `deterministic` it is the one that gives a row the same bits in every batch; with the quantization "fp8"
        the weights of layers are 8-bit floats, with "auto" a GPU keeps 4-bit codes. Raises ConfigError where there is
        none.
        """
        cpus = usable_cpus() if device.type == "cpu" else frozenset()
        is_full = len(cpus) <= torch.get_num_threads()
        busy = tuple(sorted(cpus)) if is_full else ()
        ops = batch_invariant_ops_for(dtype, device) if deterministic else ops_for(dtype, device)
        packer: Float8Packer | Int4Packer | None = None
        if quantization == FLOAT8_QUANTIZATION:
            check_products(dtype, device)
            packer = Float8Packer(ops.pack)
        elif quantization == FILE_QUANTIZATION and _multiplies_codes(dtype, device):
            packer = Int4Packer(device, ops.pack)
        return cls(ops, cpus=busy, sampler=sampling_ops_for(device), packer=packer)

    @property
    def kept(self) -> None:
        """See ModelBackend: not reported, weights have the dequantized numbers."""

    def wrap_loader(self, loader: ParameterLoader) -> ParameterLoader:
        """See ModelBackend."""
        pack = self.packer or (lambda parts, read, *, gated: self.ops.pack(loader.concat(parts)))
        return replace(loader, pack=pack)

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """See ModelBackend: the model's own dtype, as in transformers."""
        return dtype

    def compute_dtype(self, dtype: str) -> str:
        """See ModelBackend: the same."""
        return dtype

    def decoder(self, parts: DecoderSpec) -> CausalLM:
        """See ModelBackend."""
        return AdaptedDecoder(parts, self.ops) if self.adapts else TorchDecoder(parts, self.ops)

    def attention(self) -> None:
        """See ModelBackend: every attention backend works."""

    def sampling_ops(self) -> SamplingOps:
        """See ModelBackend."""
        return self.sampler

    def report(self) -> tuple[tuple[str, str], ...]:
        """See ModelBackend."""
        kernels = ("kernels", self.why)
        packed = None if self.packer is None else self.packer.report()
        return (kernels,) if packed is None else (kernels, ("quantization", packed))


def _multiplies_codes(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether products with 4-bit codes are Triton's: torch's own dequantize a weight in every step."""
    return device.type == "cuda" and dtype != torch.float64 and can_use_triton(device)


def sampling_ops_for(device: torch.device) -> SamplingOps:
    """Return the fastest implementation on a device for models that torch runs."""
    if not can_use_triton(device):
        return TorchSamplingOps()
    from chairlift.model.sampling.device.triton_sampling import TritonSamplingOps

    return TritonSamplingOps()
