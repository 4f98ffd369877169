"""RunnerConfig: the settings of the torch runner. Imports no torch."""

from dataclasses import dataclass, field

import msgspec

from chairlift.model.device.dtypes import AUTO_DTYPE, NATIVE_COMPUTE_DTYPES

MODEL_IMPLS = ("auto", "native", "transformers")
MODEL_IMPL_ALIASES = {"vllm": "native", "sglang": "native"}
"""Names in vLLM and SGLang for the engine's own architectures."""

MAX_DETERMINISTIC_RANKS = 2
"""Ranks whose sum has the same bits in any order."""

KERNELS = ("auto", "native", "torch")
CUDA_GRAPH_MODES = ("auto", "on", "off")
NATIVE_QUANTIZATIONS = ("int8", "int8-channel", "int4")
"""Values of the option `quantization` for the native kernels."""

NATIVE_BLOCK_MULTIPLE = 16
"""Block sizes of the native kernels' KV cache are multiples of this number."""

FLOAT8_QUANTIZATION = "fp8"
"""The value for torch's products of 8-bit floats (model/kernels/float8_linear.py)."""

FILE_QUANTIZATION = "auto"
"""The value for weights as their file has them: codes where kernels can multiply by them, else dequantized."""

UNQUANTIZED = (FILE_QUANTIZATION, "none")
"""Values that quantize no weights of 16 or 32 bits."""

QUANTIZATIONS = (*UNQUANTIZED, *NATIVE_QUANTIZATIONS, FLOAT8_QUANTIZATION)
DEVICE_TYPES = (
    "cpu", "cuda", "mps", "xpu", "hpu", "npu", "ipu", "mtia", "maia", "xla", "hip", "ve", "fpga", "vulkan", "opengl",
    "opencl", "mkldnn", "ideep", "lazy", "meta", "privateuseone",
)  # fmt: skip
"""Types of torch devices, so that another name is found without importing torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """The model folder and the limits of the runner.

    Attributes:
        model: folder with config.json and safetensors; "" is a tiny random model (seeded by `seed`).
        model_impl: "native" are Chairlift's own architectures, "transformers" transformers' modules on the paged cache,
            "auto" the former where they fit.
        dtype: "auto" is the checkpoint's own; else float64, float32, bfloat16, float16.
        device: a torch device name; "auto" is cuda where there is one, else cpu.
        block_size: tokens in a block of the KV cache.
        num_blocks: blocks of the KV cache; None is derived from memory.
        max_memory: share (0..1) of the memory free after loading that the KV cache may use, or bytes: on each GPU, or
            on a CPU for all ranks together.
        max_batch_tokens: tokens in the largest step, for the memory that a step needs.
        max_running_requests: sequences in the largest step.
        max_model_len: tokens of a sequence; None is the model's own limit.
        fits_length_to_cache: lower the model's own limit to the longest sequence that the KV cache holds.
        kv_cache_dtype: "auto" is the model's; "fp8" are 8-bit floats (e4m3), of which twice as many fit as of bfloat16.
        attention_backend: a name of model/config/attention_backend_names.py; "auto" is the fastest on this machine.
        kernels: "native" are Chairlift's own for CPUs, "torch" are torch's, "auto" native ones where they can run.
        quantization: of the weights: "auto" is that of the file, "none" dequantizes it; by the native kernels "int8"
            and "int4" (groups of 32), "int8-channel"; by torch "fp8", 8-bit floats (e4m3) in the layers of Chairlift's
            own architectures.
        cpu_threads: threads of the native kernels; None is one per core, less one for the other processes where the
            machine has more than two cores.
        packed_weights_dir: folder that keeps packed weights for the next start; None keeps none.
        tensor_parallel_size: processes that share every layer, each on its own device; needs an architecture of
            Chairlift's own and torch's kernels.
        use_cuda_graph: "on", "off", or "auto" for on where it can be: decode steps on a CUDA device are CUDA graphs.
        enable_lora: let sequences have LoRA adapters; by torch's kernels.
        deterministic: give a request the same tokens whatever else is in its batch; ConfigError where no kernels do.
        seed: seed of the tiny model's random weights.
        logits_processor_factories: name -> "package.module:factory" of the processors that requests may choose.
    """

    model: str = ""
    model_impl: str = "auto"
    dtype: str = "auto"
    device: str = "auto"
    block_size: int = 16
    num_blocks: int | None = None
    max_memory: float | int | None = None
    max_batch_tokens: int = 2048
    max_running_requests: int = 256
    max_model_len: int | None = None
    fits_length_to_cache: bool = False
    kv_cache_dtype: str = "auto"
    attention_backend: str = "auto"
    kernels: str = "auto"
    quantization: str = FILE_QUANTIZATION
    cpu_threads: int | None = None
    packed_weights_dir: str | None = None
    tensor_parallel_size: int = 1
    use_cuda_graph: str = "auto"
    enable_lora: bool = False
    deterministic: bool = False
    seed: int = 0
    logits_processor_factories: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the bytes for a RunnerSpec."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(payload: bytes) -> "RunnerConfig":
        """Decode the bytes that `encode` returned."""
        return msgspec.msgpack.decode(payload, type=RunnerConfig)


def selects_native_kernels(config: RunnerConfig, dtype: str | None, *, on_cpu: bool) -> bool:
    """Return whether the options select the native kernels for weights of `dtype`.

    Whether they run a model depends on more: head sizes and activations, which almost all models fit.
    """
    selects_torch = config.kernels == "torch" or config.enable_lora or config.quantization == FLOAT8_QUANTIZATION
    selects_torch |= config.tensor_parallel_size > 1 or config.block_size % NATIVE_BLOCK_MULTIPLE != 0
    is_auto = config.attention_backend == config.kv_cache_dtype == AUTO_DTYPE
    return on_cpu and not selects_torch and is_auto and str(dtype) in NATIVE_COMPUTE_DTYPES


def compute_dtype(config: RunnerConfig, dtype: str | None, *, on_cpu: bool) -> str | None:
    """Return the dtype of activations and KV cache for weights of `dtype`, by the kernels that the options select."""
    return NATIVE_COMPUTE_DTYPES[str(dtype)] if selects_native_kernels(config, dtype, on_cpu=on_cpu) else dtype


def cache_name(config: RunnerConfig, dtype: str | None, computed: str | None) -> str:
    """Return what a model's identifier has of the KV cache's dtype: "" for the model's own.

    Blocks of two dtypes must not be taken for each other, and a stream must not be resumed on the other.
    """
    if config.kv_cache_dtype != AUTO_DTYPE:
        return f" kv cache {config.kv_cache_dtype}"
    return "" if computed == dtype else f" kv cache {computed}"
