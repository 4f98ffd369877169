"""Execution: how a decoder that a family described is run, and in which layout it wants its weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from chairlift.core.cpu_affinity import usable_cpus
from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend
from chairlift.model.attention.registry import AUTO
from chairlift.model.layers.causal_lm import CausalLM
from chairlift.model.layers.decoder import Decoder, DecoderParts
from chairlift.model.layers.fused_ops import ops_for
from chairlift.model.layers.ops import Ops
from chairlift.model.loading.model_config import ModelConfig
from chairlift.model.loading.parameter_loader import Take
from chairlift.model.runner.runner_config import KERNELS, QUANTIZATIONS, RunnerConfig
from chairlift.model.sampling.sampling_ops import Drawing, TorchDrawing


class Execution(Protocol):
    """One way to run a decoder.

    Attributes:
        chunk_tokens, cpus: see RunnerInfo.
    """

    @property
    def chunk_tokens(self) -> int | None:
        """Prompt tokens of one step that it likes best, None for any number."""
        ...

    @property
    def cpus(self) -> tuple[int, ...]:
        """Processors that it keeps busy."""
        ...

    @property
    def torch_threads(self) -> int | None:
        """Threads that torch may have in the engine's thread, None for as many as it wants."""
        ...

    def taking(self, take: Take) -> Take:
        """Return a Take that hands out weights in the layout that is wanted."""
        ...

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of cosines and sines for a model of `dtype`."""
        ...

    def decoder(self, parts: DecoderParts) -> CausalLM:
        """Make the decoder."""
        ...

    def attention(self) -> Callable[[], AttentionBackend] | None:
        """Return what makes the attention backend of its decoders; None where any will do."""
        ...

    def drawing(self) -> Drawing:
        """Return who draws tokens from its logits."""
        ...

    def report(self) -> tuple[tuple[str, str], ...]:
        """Say how it runs, for people: (name, value)."""
        ...


@dataclass(frozen=True, slots=True)
class TorchExecution:
    """Operation by operation, in torch: any device, any dtype.

    Attributes:
        ops: what computes.
        why: it was chosen, for people.
        chunk_tokens, cpus: see RunnerInfo.
        torch_threads: see Execution.
    """

    ops: Ops
    why: str = "torch"
    chunk_tokens: int | None = None
    torch_threads: int | None = None
    cpus: tuple[int, ...] = ()

    @classmethod
    def best(cls, dtype: torch.dtype, device: torch.device) -> "TorchExecution":
        """Return the fastest for a dtype on a device."""
        cpus = usable_cpus() if device.type == "cpu" else frozenset()
        is_full = len(cpus) <= torch.get_num_threads()
        return cls(ops_for(dtype, device), cpus=tuple(sorted(cpus)) if is_full else ())

    def taking(self, take: Take) -> Take:
        """See Execution."""
        return replace(take, pack=lambda parts, read, *, gated: self.ops.pack(take.rows(parts)))

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """See Execution: the model's own, as transformers has it."""
        return dtype

    def decoder(self, parts: DecoderParts) -> CausalLM:
        """See Execution."""
        return Decoder(parts, self.ops)

    def attention(self) -> None:
        """See Execution: every backend fits."""

    def drawing(self) -> Drawing:
        """See Execution."""
        return TorchDrawing()

    def report(self) -> tuple[tuple[str, str], ...]:
        """See Execution."""
        return (("kernels", self.why),)


def choose_execution(
    config: RunnerConfig, model: ModelConfig, device: torch.device, name: str | None = None
) -> Execution:
    """Return who runs a model as the options want it; its dtype is the one as loaded, `name` stands for its weights.

    Raises ConfigError where native kernels are asked for, or needed for a quantization, and cannot run it.
    """
    from chairlift.model.kernels.cpu.native_backend import NativeExecution, check_fit
    from chairlift.model.loading.registry import torch_dtype

    needed, why = config.kernels == "native" or config.quantization != "none", "torch"
    if config.kernels != "torch" and config.attention_backend == AUTO:
        try:
            check_fit(model, device, config.block_size)
            kept = None
            if config.weight_cache is not None and name is not None:
                kept = Path(config.weight_cache).expanduser() / f"{name}.packed"
            return NativeExecution(config.quantization, config.cpu_threads, kept)
        except ConfigError as error:
            if needed:
                raise
            why = f"torch ({error.message})"
    return replace(TorchExecution.best(torch_dtype(model.dtype), device), why=why)


def check_kernels(config: RunnerConfig) -> None:
    """Raise ConfigError for options of the kernels that cannot be, whatever the model."""
    for name, value, known in (
        ("kernels", config.kernels, KERNELS), ("quantization", config.quantization, QUANTIZATIONS)
    ):  # fmt: skip
        if value not in known:
            raise ConfigError(f"{name} {value!r} is unknown; known are {', '.join(known)}", option=name)
    if config.cpu_threads is not None and config.cpu_threads < 1:
        raise ConfigError(f"cpu_threads must be at least 1, got {config.cpu_threads}", option="cpu_threads")
    if config.quantization != "none" and config.kernels == "torch":
        said = f"quantization {config.quantization!r} needs the native kernels; leave kernels 'torch' out"
        raise ConfigError(said, option="quantization")
    if config.attention_backend != AUTO and (config.quantization != "none" or config.kernels == "native"):
        said = "the native kernels have an attention of their own; leave attention_backend out"
        raise ConfigError(said, option="attention_backend")
