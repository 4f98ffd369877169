"""ModelMemory: the bytes of a model's weights, of its KV cache and of a step, whole or on one of several devices.

The weights and the KV cache are exact for a shape that is exact. The memory of a step is an estimate from above: the
residual, its normed copy and float32 norms beside the widest part of a layer, and the logits of every running request.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from chairlift.bench.planning.layer_state import STATE_ELEMENT_BYTES
from chairlift.bench.planning.model_shape import ModelShape
from chairlift.bench.planning.weight_quantization import GGUF, has_plain_attention, weight_bits
from chairlift.core.errors import ConfigError

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
NATIVE_QUANTIZATION = {"int8": 1 + 2 / 32, "int8-channel": 1.0, "int4": 1 / 2 + 4 / 32}
"""Bytes of a parameter with Chairlift's --quantization by its CPU kernels; groups of 32 share a scale of two bytes,
and those of int4 a minimum of two more."""

INT4_HEAD_BYTES = 3 / 4 + 2 / 32
"""The same of the lm_head with int4: codes of 6 bits (HEAD_KINDS of the kernels)."""

FLOAT8 = "fp8"
"""Value of Chairlift's --quantization for 8-bit floats in the layers, and of its --kv-cache-dtype."""

FLOAT8_SCALE_BYTES = 4
"""Bytes of the scale of a weight's row of 8-bit floats."""

FILE = "auto"
"""Value of Chairlift's --quantization for weights as the checkpoint has them; "none" dequantizes them."""

QUANTIZATIONS = (FILE, "none", *NATIVE_QUANTIZATION, FLOAT8)
KV_CACHE_DTYPES = ("auto", FLOAT8)


def check_dtype(name: str) -> str:
    """Return the name of a dtype. Raises ConfigError for an unknown one."""
    if name not in DTYPE_BYTES:
        raise ConfigError(f"dtype {name!r} is unknown; known are {', '.join(DTYPE_BYTES)}", option="dtype")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """The bytes of a model with these options.

    Attributes:
        shape: the model.
        dtype: a key of DTYPE_BYTES: of weights that are not quantized, and of the computation and an "auto" KV cache,
            which are float32 for weights of float16 on a CPU.
        quantization: Chairlift's --quantization.
        kv_cache_dtype: Chairlift's --kv-cache-dtype, or "auto".
        block_size: tokens of a KV cache block.
        max_batch_tokens: tokens in a step.
        max_running_requests: requests that run at once.
        on_cpu: whether the native kernels of a CPU compute.
    """

    shape: ModelShape
    dtype: str
    quantization: str = FILE
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    max_batch_tokens: int = 2048
    max_running_requests: int = 256
    on_cpu: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("quantization", self.quantization, QUANTIZATIONS),
            ("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES),
        ):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}; available are {', '.join(known)}", option=name)
        if self.kv_cache_dtype == FLOAT8 and self.quantization in NATIVE_QUANTIZATION:
            raise ConfigError(
                f"kv_cache_dtype {self.kv_cache_dtype!r} is not for the native kernels, which quantization "
                f"{self.quantization!r} selects; leave one of them out", option="kv_cache_dtype",
            )  # fmt: skip

    @property
    def itemsize(self) -> int:
        """Bytes of an element that is not quantized."""
        return DTYPE_BYTES[self.dtype]

    @property
    def kv_itemsize(self) -> int:
        """Bytes of an element of the KV cache."""
        return 1 if self.kv_cache_dtype == FLOAT8 else self.computed_itemsize

    @property
    def computed_itemsize(self) -> int:
        """Bytes of an element of activations."""
        is_native = self.on_cpu and FLOAT8 not in (self.kv_cache_dtype, self.quantization)
        return DTYPE_BYTES["float32"] if is_native and self.dtype == "float16" else self.itemsize

    @property
    def matrix_bytes(self) -> float:
        """Bytes of a weight in the layers' projections."""
        if self.quantization == FLOAT8:
            return 1 + FLOAT8_SCALE_BYTES / self.shape.hidden_size
        if self.quantization in NATIVE_QUANTIZATION:
            return NATIVE_QUANTIZATION[self.quantization]
        return weight_bits(self.shape.quantization) / 8 if self._keeps_codes else float(self.itemsize)

    @property
    def _keeps_codes(self) -> bool:
        """Whether weights are as the checkpoint has them, and it is quantized.

        Of GGUF a GPU keeps few types, so that all weights are counted as dequantized there.
        """
        is_gguf = self.shape.quantization.get("quant_method") == GGUF
        return self.quantization == FILE and bool(self.shape.quantization) and (self.on_cpu or not is_gguf)

    @property
    def attention_bytes(self) -> float:
        """Bytes of a weight in the projections of attention, which a checkpoint's quantization may leave out."""
        is_plain = self._keeps_codes and has_plain_attention(self.shape.quantization)
        return float(self.itemsize) if is_plain else self.matrix_bytes

    @property
    def head_bytes(self) -> float:
        """Bytes of a parameter of the lm_head, which the quantizations of Chairlift's CPU kernels and GGUF include."""
        if self._keeps_codes and "head_bits" in self.shape.quantization:
            return float(self.shape.quantization["head_bits"]) / 8
        if self.quantization == "int4":
            return INT4_HEAD_BYTES
        return NATIVE_QUANTIZATION.get(self.quantization, float(self.itemsize))

    @property
    def table_bytes(self) -> float:
        """Bytes of a parameter of the embedding table, which only GGUF quantizes where it is not the lm_head, too."""
        if self._keeps_codes and "table_bits" in self.shape.quantization:
            return float(self.shape.quantization["table_bits"]) / 8
        return self.head_bytes if self.shape.is_tied else float(self.itemsize)

    @property
    def is_quantized(self) -> bool:
        """Whether the weights of the layers are not of the dtype."""
        return self.matrix_bytes != self.itemsize

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return self.stage_weights(1, 1)

    def stage_weights(self, tensor: int, pipeline: int) -> int:
        """Return the bytes of weights on the fullest device of `pipeline` stages of `tensor` devices each.

        Norms are on every device of a stage. The first stage has the embedding table, the last one the lm_head (the
        table again where the two are tied).
        """
        shape = self.shape
        mixers = zip(shape.mixer_matrices, shape.mlps, strict=True)
        layers = [mixer * self.attention_bytes + mlp.matrices * self.matrix_bytes for mixer, mlp in mixers]
        others = zip(shape.mixer_vectors, shape.mlps, strict=True)
        vectors = [mixer + shape.layer_norms + mlp.vectors for mixer, mlp in others]
        stages = []
        for stage, span in enumerate(stage_layers(shape.num_layers, pipeline)):
            is_last = stage == pipeline - 1
            tables = shape.table * self.table_bytes * (stage == 0)
            tables += self.head_bytes * (shape.head if pipeline == 1 else shape.table * is_last)
            tables += self.head_bytes * (shape.inputs_table + shape.inputs_projection) * (stage == 0)
            matrices = sum(layers[span.start : span.stop])
            norms = shape.hidden_size * is_last + shape.inputs_size * (stage == 0)
            small = sum(vectors[span.start : span.stop]) + norms
            stages.append((matrices + tables) / tensor + small * self.itemsize)
        return math.ceil(max(stages))

    @property
    def read_weights(self) -> float:
        """Bytes of the weights that a step with many tokens reads: all experts, and the lm_head."""
        head = (self.shape.table + self.shape.inputs_projection) * self.head_bytes
        attention = sum(self.shape.mixer_matrices)
        matrices = (self.shape.matrices - attention) * self.matrix_bytes + attention * self.attention_bytes
        return matrices + head + self.shape.vectors * self.itemsize

    @property
    def kv_per_token(self) -> int:
        """Bytes of the KV cache for one token in all layers, as long as no window has passed it."""
        return sum(layer.kv_elements for layer in self.shape.attention) * self.kv_itemsize

    @property
    def state_of_request(self) -> int:
        """Bytes of the states of a sequence, in all layers that keep one."""
        return self.shape.state_elements * max(STATE_ELEMENT_BYTES, self.itemsize)

    def kv_of_request(self, length: int, tensor: int = 1, pipeline: int = 1, context: int = 1) -> int:
        """Return the bytes of KV cache and states of a sequence of `length` tokens on the fullest device.

        The last token is never an input, so it has no entry. A layer with a window keeps the blocks that it touches.
        Key/value heads are split over `tensor` devices, and copied where there are more devices than heads.
        """
        whole = math.ceil(max(1, length - 1) / self.block_size)
        blocks = [
            whole if window is None else min(whole, math.ceil((window - 1) / self.block_size) + 1)
            for window in self.shape.layer_windows
        ]
        layers = [
            count * layer.kv_elements / min(tensor, layer.num_kv_heads)
            for count, layer in zip(blocks, self.shape.attention, strict=True)
        ]
        fullest = max(sum(layers[span.start : span.stop]) for span in stage_layers(len(layers), pipeline))
        return math.ceil(fullest * self.block_size * self.kv_itemsize / context) + self.state_of_request

    def step_bytes(self, tensor: int = 1) -> int:
        """Return an upper estimate of the bytes that a step needs beside weights and KV cache."""
        shape, itemsize = self.shape, self.computed_itemsize
        attention = max(layer.pair_width + layer.kv_elements for layer in shape.attention)
        widest = math.ceil(3 * max(shape.intermediate_size, attention) / tensor)
        activations = self.max_batch_tokens * (itemsize * (3 * shape.hidden_size + widest) + 8 * shape.hidden_size)
        activations += self.max_batch_tokens * shape.num_layers * shape.inputs_size * (4 * itemsize + 8)
        logits = self.max_running_requests * math.ceil(shape.vocab_size / tensor) * (itemsize + 8)
        return activations + logits


def stage_layers(num_layers: int, pipeline: int) -> list[range]:
    """Return the layers of each pipeline stage; sizes differ by one at most, and later stages have the larger ones."""
    bounds = [num_layers * stage // pipeline for stage in range(pipeline + 1)]
    return [range(begin, end) for begin, end in pairwise(bounds)]
