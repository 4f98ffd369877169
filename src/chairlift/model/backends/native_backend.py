"""NativeBackend: runs decoders on the native kernels, with activations and KV cache in bfloat16 or float32."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend
from chairlift.model.backends.loaded_model import KeptCodes
from chairlift.model.backends.native_attention import NativeAttention
from chairlift.model.backends.native_decoder import NativeDecoder
from chairlift.model.backends.native_linear_and_norm import NativeLinear, NativeRMSNorm
from chairlift.model.backends.native_lm_head import NativeHead
from chairlift.model.backends.native_sampling import NativeSamplingOps
from chairlift.model.backends.native_state_layers import obstacle
from chairlift.model.backends.trial_product import trial_product
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.runner_config import FILE_QUANTIZATION, UNQUANTIZED
from chairlift.model.device.dtypes import NATIVE_COMPUTE_DTYPES, torch_dtype
from chairlift.model.kernels.cpu.instruction_sets import selected_instruction_set
from chairlift.model.kernels.cpu.kernel_cpus import ANYWHERE
from chairlift.model.kernels.cpu.library import ACTIVATIONS, KEY_TILE
from chairlift.model.kernels.cpu.packing import PackedWeight, Packer, fits_segments
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.kernels.cpu.weight_kinds import BLOCK_KINDS, DTYPES, HEAD_KINDS, KINDS
from chairlift.model.layers.causal_lm_protocol import CausalLM
from chairlift.model.layers.decoder import DecoderSpec
from chairlift.model.layers.per_layer_inputs import TABLE
from chairlift.model.sampling.sampling_ops import SamplingOps
from chairlift.model.weights.float8_packer import LAYERS
from chairlift.model.weights.packed_weight_cache import Kinds, PackedWeightCache
from chairlift.model.weights.parameter_loader import ParameterLoader, Part

log = logging.getLogger(__name__)

TRIAL_REPEATS = 3
"""Products of which the startup report shows the speed."""

LARGE_ERROR = 0.5
"""Relative error of a quantized weight that is worth a warning: its numbers do not fit the codes or their scales."""

MAX_HEAD_DIM = 512
"""Largest supported head dimension."""

CHUNK_TOKENS = 256
"""Preferred number of prompt tokens of one step. 64 rows use the multipliers as well as 2,048, with shorter steps.

Output tokens/s of 32 concurrent requests of 16..256 prompt and 16..128 output tokens (0.6B model), by this number:
64: 167, 128: 185, 256: 190, 2,048: 179.
"""


class NativeBackend:
    """Runs all layers of a step in one call of the library.

    Weights of float16 are stored as they are, and multiplied as exactly as the same numbers in float32.

    Attributes:
        quantization: kind of the weights, a value of the option `quantization`.
        dtype: of activations, KV cache and hidden states: bfloat16 or float32.
        instruction_set: the instruction set of the kernels.
        threads: threads of the pool.
        chunk_tokens, cpus: see RunnerInfo.
        torch_threads: see ModelBackend. More torch threads would spin after each operation on the pool's processors.
    """

    chunk_tokens = CHUNK_TOKENS
    torch_threads = 1

    def __init__(
        self, quantization: str = "none", threads: int | None = None, packed_file: Path | None = None,
        dtype: str = "bfloat16",
    ) -> None:  # fmt: skip
        """Choose kernels and threads for a model of `dtype`, a key of NATIVE_COMPUTE_DTYPES.

        `packed_file` stores packed weights.

        Raises ConfigError if the kernels are not available or the threads cannot be started.
        """
        self.quantization = quantization
        self._pool = get_thread_pool(threads)
        self.dtype = torch_dtype(NATIVE_COMPUTE_DTYPES[dtype])
        self._weights = dtype if quantization in UNQUANTIZED else quantization
        self._packer = Packer(self._pool, KINDS[self._weights], self.dtype)
        self._store = PackedWeightCache(self._packer, packed_file, self._choose_kinds)
        self._linear_errors: dict[str, float] = {}
        self._num_dequantized = 0
        self.instruction_set = selected_instruction_set()
        self.threads = len(self._pool.cpus)
        self.cpus = tuple(sorted(usable_cpus())) if ANYWHERE in self._pool.cpus else self._pool.cpus

    def wrap_loader(self, loader: ParameterLoader) -> ParameterLoader:
        """See ModelBackend: weights are packed, and so is an embedding table that is the lm_head, too, or has codes.

        The table of inputs of layers, which may be the larger part of a model, is packed where weights are rounded.
        """
        rounds = self._packer.kind not in DTYPES

        def packs_table(name: str, tied: bool) -> bool:
            return tied or (rounds and name == TABLE) or None not in self._types([name], loader)

        return replace(loader, pack=self._store, packs_table=packs_table)

    def _choose_kinds(self, parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> Kinds:
        """Return the kinds of the checkpoint's codes if they are kept, else that of the option or the dtype.

        The lm_head and an embedding table may have another kind than the layers (HEAD_KINDS).
        """
        types = self._types([name for name, _ in parts], loader)
        kept = tuple(name for name in types if name is not None)
        if len(kept) == len(parts) and fits_segments([shape[0] for _, shape in parts], kept, gated=gated):
            return Kinds(tuple(BLOCK_KINDS[name] for name in kept), kept)
        self._num_dequantized += sum(
            math.prod(shape) for (_, shape), name in zip(parts, types, strict=True) if name is not None
        )
        is_layer = all(name.startswith(LAYERS) for name, _ in parts)
        kind = self._packer.kind if is_layer else HEAD_KINDS.get(self.quantization, self._packer.kind)
        return Kinds((kind,) * len(parts))

    def _types(self, names: Sequence[str], loader: ParameterLoader) -> list[str | None]:
        """Return the type of the codes of each parameter; None for one without codes, or whose codes are not wanted."""
        if self.quantization != FILE_QUANTIZATION:
            return [None] * len(names)
        stored = [loader.stored(name) for name in names]
        return [None if each is None else each.codes_type for each in stored]

    def rope_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """See ModelBackend: cosines and sines are float32."""
        return torch.float32

    def compute_dtype(self, dtype: str) -> str:
        """See ModelBackend: activations are float32 where weights are float16."""
        return NATIVE_COMPUTE_DTYPES[dtype]

    @property
    def kept(self) -> KeptCodes | None:
        """See LoadedModel."""
        kinds = self._store.sizes.most_common(1)
        return KeptCodes(kinds[0][0], self._store.num_bytes, frozenset(self._store.names)) if kinds else None

    def decoder(self, parts: DecoderSpec) -> CausalLM:
        """See ModelBackend."""
        self._store.finish()
        for name, error in self._store.errors.items():
            log.debug("%s of %s: relative error %.3f%%", self.quantization, name, 100 * error)
        return NativeDecoder(parts, self._pool, self.instruction_set, self.dtype)

    def linear(self, name: str, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> NativeLinear:
        """Pack a linear layer, gated if it has an activation. Raises MemoryError or OSError."""
        made = NativeLinear(weight, bias, self._packer, self.instruction_set, activation)
        if made.error is not None:
            self._linear_errors[name] = made.error
        return made

    def rms_norm(self, factors: Tensor, eps: float) -> NativeRMSNorm:
        """Return an RMS norm with these factors [H]."""
        return NativeRMSNorm(factors, eps, self._pool, self.instruction_set, self.dtype)

    def head(self, weight: PackedWeight, vocab_size: int, softcap: float | None) -> NativeHead:
        """Return the lm_head of a model whose layers run in torch."""
        return NativeHead(weight, vocab_size, softcap, self._pool, self.instruction_set, self.dtype)

    def attention(self) -> Callable[[], AttentionBackend]:
        """See ModelBackend."""
        return lambda: NativeAttention(self._pool, self.instruction_set)

    def sampling_ops(self) -> SamplingOps:
        """See ModelBackend."""
        return NativeSamplingOps(self._pool, self.instruction_set)

    def report(self) -> tuple[tuple[str, str], ...]:
        """See ModelBackend."""
        kept = [name for name, _ in self._store.sizes.most_common()]
        if self._num_dequantized:
            share = self._num_dequantized / (self._num_dequantized + self._store.sizes.total())
            kept.append(f"{self.dtype} {share:.0%} (of several types in one product)".removeprefix("torch."))
        weights = (
            f", weights: {', '.join(kept)}" if kept else ", weights: float16" if self._weights == "float16" else ""
        )
        speed = trial_product(kept[0] if self._store.sizes else self._weights, self.instruction_set, TRIAL_REPEATS)
        lines = [("kernels", f"native ({self.instruction_set}), threads: {self.threads}{weights}; {speed}")]
        if errors := self._store.errors | self._linear_errors:
            worst = max(errors, key=lambda name: errors[name])
            if errors[worst] > LARGE_ERROR:
                log.warning("%s changes %s by %.0f%%; use another one", self.quantization, worst, 100 * errors[worst])
            lines.append(("quantization", f"{self.quantization}, largest error {errors[worst]:.2%} ({worst})"))
        return tuple(lines)


def check_fit(config: DecoderConfig, device: torch.device, block_size: int) -> None:
    """Raise ConfigError, with the reason, unless the kernels can run the model; config.dtype is the dtype as loaded."""
    if device.type != "cpu":
        raise _unfit(f"they run on the CPU, not on {device}")
    if config.dtype not in NATIVE_COMPUTE_DTYPES:
        raise _unfit(f"they compute in bfloat16 and float32, not in {config.dtype}")
    for head_dim in sorted({shape.head_dim for shape in config.attention_shapes}):
        check_attention_fit(head_dim, block_size)
    if config.activation not in ACTIVATIONS:
        raise _unfit(f"they do not support the activation {config.activation}")
    for layer in config.state_layers:
        if layer is not None and (reason := obstacle(layer)) is not None:
            raise _unfit(reason)
    selected_instruction_set()


def check_attention_fit(head_dim: int, block_size: int) -> None:
    """Raise ConfigError, with the reason, unless the kernels have an attention of this shape."""
    if block_size % KEY_TILE:
        raise _unfit(f"block_size must be a multiple of {KEY_TILE}, not {block_size}")
    if head_dim % KEY_TILE or head_dim > MAX_HEAD_DIM:
        raise _unfit(f"head_dim must be a multiple of {KEY_TILE} up to {MAX_HEAD_DIM}, not {head_dim}")


def _unfit(reason: str) -> ConfigError:
    return ConfigError(f"the native kernels cannot run this model: {reason}", option="kernels")
