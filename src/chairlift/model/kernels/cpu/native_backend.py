"""NativeExecution: decoders on the C++ kernels, with bfloat16 activations and cache."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from chairlift.core.cpu_affinity import usable_cpus
from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend
from chairlift.model.kernels.cpu.library import ACTIVATIONS, KEY_TILE, selected_instruction_set
from chairlift.model.kernels.cpu.native_attention import NativeAttention
from chairlift.model.kernels.cpu.native_decoder import NativeDecoder
from chairlift.model.kernels.cpu.native_sampling import NativeSamplingOps
from chairlift.model.kernels.cpu.packing import KINDS, Packer
from chairlift.model.kernels.cpu.threads import ANYWHERE, get_thread_pool
from chairlift.model.kernels.cpu.weight_store import WeightStore
from chairlift.model.layers.causal_lm import CausalLM
from chairlift.model.layers.decoder import DecoderSpec
from chairlift.model.loading.model_config import ModelConfig
from chairlift.model.loading.parameter_loader import ParameterLoader
from chairlift.model.sampling.sampling_ops import SamplingOps

log = logging.getLogger(__name__)

MAX_HEAD_DIM = 512

CHUNK_TOKENS = 256
"""Prompt tokens of one step. 64 rows keep the multipliers as busy as 2,048 do, and fewer rows leave steps short.

32 requests at once of 16..256 prompt and 16..128 output tokens (0.6B), output tokens/s by this number: 64: 167, 128:
185, 256: 190, 2,048: 179.
"""


class NativeBackend:
    """Runs all layers of a step in one call of the library.

    Attributes:
        quantization: of weights.
        instruction_set: whose kernels compute.
        threads: members of the pool.
        chunk_tokens, cpus: see RunnerInfo.
        torch_threads: see Execution. Others would spin behind every operation where the pool's want to compute.
    """

    chunk_tokens = CHUNK_TOKENS
    torch_threads = 1

    def __init__(self, quantization: str = "none", threads: int | None = None, kept: Path | None = None) -> None:
        """Choose kernels and threads; `kept` is a file of packed weights.

        Raises ConfigError where they cannot be had.
        """
        self.quantization = quantization
        self._pool = get_thread_pool(threads)
        self._store = WeightStore(Packer(self._pool, KINDS[quantization]), kept)
        self.instruction_set = selected_instruction_set()
        self.threads = len(self._pool.cpus)
        self.cpus = tuple(sorted(usable_cpus())) if ANYWHERE in self._pool.cpus else self._pool.cpus

    def wrap_loader(self, take: ParameterLoader) -> ParameterLoader:
        """See Execution: weights go into panels, a table that is the head as well, too."""
        return replace(take, pack=self._store, packs_tables=True)

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """See Execution: rotations are float32."""
        return torch.float32

    def decoder(self, parts: DecoderSpec) -> CausalLM:
        """See Execution."""
        self._store.finish()
        for name, error in self._store.errors.items():
            log.debug("%s of %s: relative error %.3f%%", self.quantization, name, 100 * error)
        return NativeDecoder(parts, self._pool, self.instruction_set)

    def attention(self) -> Callable[[], AttentionBackend]:
        """See Execution."""
        return lambda: NativeAttention(self._pool, self.instruction_set)

    def sampling_ops(self) -> SamplingOps:
        """See Execution."""
        return NativeSamplingOps(self._pool, self.instruction_set)

    def report(self) -> tuple[tuple[str, str], ...]:
        """See Execution."""
        found = [("kernels", f"native ({self.instruction_set}), threads: {self.threads}")]
        if errors := self._store.errors:
            worst = max(errors, key=lambda name: errors[name])
            found.append(("quantization", f"{self.quantization}, largest error {errors[worst]:.2%} ({worst})"))
        return tuple(found)


def check_fit(config: ModelConfig, device: torch.device, block_size: int) -> None:
    """Raise ConfigError, which says why, unless the kernels can run such a model; its dtype is the one as loaded."""
    if device.type != "cpu":
        raise _unfit(f"they run on the CPU, not on {device}")
    if config.dtype != "bfloat16":
        raise _unfit(f"they compute in bfloat16, not in {config.dtype}")
    if block_size % KEY_TILE:
        raise _unfit(f"block_size must be a multiple of {KEY_TILE}, not {block_size}")
    if config.head_dim % KEY_TILE or config.head_dim > MAX_HEAD_DIM:
        raise _unfit(f"head_dim must be a multiple of {KEY_TILE} up to {MAX_HEAD_DIM}, not {config.head_dim}")
    if config.activation not in ACTIVATIONS:
        raise _unfit(f"they have no activation {config.activation}")
    selected_instruction_set()


def _unfit(why: str) -> ConfigError:
    return ConfigError(f"the native kernels cannot run this model: {why}", option="kernels")
