"""check_options: checks the bounds of the torch runner's settings. Imports no torch."""

import re
from collections.abc import Iterator, Mapping, Sequence

from chairlift.core.errors import ConfigError
from chairlift.model.config.attention_backend_names import AUTO, check_backend_name
from chairlift.model.config.runner_config import (
    CUDA_GRAPH_MODES,
    DEVICE_TYPES,
    FLOAT8_QUANTIZATION,
    KERNELS,
    MAX_DETERMINISTIC_RANKS,
    MODEL_IMPLS,
    NATIVE_QUANTIZATIONS,
    QUANTIZATIONS,
    RunnerConfig,
)
from chairlift.model.device.dtypes import AUTO_DTYPE, check_dtype, check_kv_cache_dtype


def check_options(config: RunnerConfig) -> None:
    """Raise ConfigError for an option that is invalid for every model."""
    check_dtype(config.dtype)
    check_kv_cache(config)
    check_device_name(config.device)
    check_kernels(config)
    check_max_memory(config.max_memory)
    check_tensor_parallel(config)
    check_lora(config)
    minimums = {
        "block_size": (config.block_size, 1), "num_blocks": (config.num_blocks, 1),
        "max_batch_tokens": (config.max_batch_tokens, 1), "max_running_requests": (config.max_running_requests, 1),
        "max_model_len": (config.max_model_len, 2), "tensor_parallel_size": (config.tensor_parallel_size, 1),
    }  # fmt: skip
    for name, (value, minimum) in minimums.items():
        if value is not None and value < minimum:
            raise ConfigError(f"{name} must be at least {minimum}, got {value}", option=name)


def check_device_name(name: str) -> None:
    """Raise ConfigError for a name that no torch device has; whether the machine has it is not checked."""
    match = re.fullmatch(r"(?P<type>[a-z]+)(:[0-9]{1,3})?", name)
    if name != "auto" and (match is None or match["type"] not in DEVICE_TYPES):
        raise ConfigError(
            f"device {name!r} is unknown; known are auto, {', '.join(DEVICE_TYPES)}, with or without an index as in "
            "cuda:1", option="device",
        )  # fmt: skip


def check_tensor_parallel(config: RunnerConfig) -> None:
    """Raise ConfigError for options that more than one rank does not support, whatever the model."""
    if config.tensor_parallel_size <= 1:
        return
    if config.deterministic and config.tensor_parallel_size > MAX_DETERMINISTIC_RANKS:
        raise ConfigError(
            f"deterministic supports at most {MAX_DETERMINISTIC_RANKS} ranks, tensor_parallel_size is "
            f"{config.tensor_parallel_size}; the order in which more numbers are added depends on the batch",
            option="deterministic",
        )
    refused = {"quantization": NATIVE_QUANTIZATIONS, "kernels": ("native",), "model_impl": ("transformers",)}
    for name, value in _selected(config, refused):
        raise ConfigError(
            f"tensor_parallel_size is {config.tensor_parallel_size}, but {name} {value!r} runs on one rank only; "
            f"set tensor_parallel_size to 1, or leave {name} out", option="tensor_parallel_size",
        )  # fmt: skip


def check_lora(config: RunnerConfig) -> None:
    """Raise ConfigError for options that adapters do not support, whatever the model."""
    if not config.enable_lora:
        return
    refused = {
        "kernels": ("native",), "quantization": NATIVE_QUANTIZATIONS, "model_impl": ("transformers",),
    }  # fmt: skip
    for name, value in _selected(config, refused):
        raise ConfigError(
            f"enable_lora needs torch's kernels and Chairlift's own architectures, but {name} is {value!r}; leave "
            f"{name} out", option="enable_lora",
        )  # fmt: skip
    if config.tensor_parallel_size > 1:
        raise ConfigError(
            f"enable_lora needs one rank, but tensor_parallel_size is {config.tensor_parallel_size}",
            option="enable_lora",
        )


def check_kv_cache(config: RunnerConfig) -> None:
    """Raise ConfigError for a dtype of the KV cache that is unknown, or that the chosen kernels cannot have."""
    check_kv_cache_dtype(config.kv_cache_dtype)
    if config.kv_cache_dtype == AUTO_DTYPE:
        return
    for name, value in _selected(config, {"kernels": ("native",), "quantization": NATIVE_QUANTIZATIONS}):
        raise ConfigError(
            f"kv_cache_dtype {config.kv_cache_dtype!r} is not for the native kernels, which {name} {value!r} "
            f"selects and whose cache is bfloat16 or float32; set kv_cache_dtype to auto, or leave {name} out",
            option="kv_cache_dtype",
        )  # fmt: skip


def _selected(config: RunnerConfig, values: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield each option, in order, that has one of its values here, and the value."""
    for name, some in values.items():
        if (value := getattr(config, name)) in some:
            yield name, value


def check_max_memory(value: float | int | None) -> None:
    """Raise ConfigError unless the value is a fraction in (0, 1], a positive number of bytes, or None."""
    if value is not None and not (0 < value <= 1 if isinstance(value, float) else value >= 1):
        raise ConfigError(
            f"max_memory must be a fraction in (0, 1] or a number of bytes, got {value}", option="max_memory"
        )


def check_kernels(config: RunnerConfig) -> None:
    """Raise ConfigError for kernel options that are invalid for every model."""
    for name, value, known in (
        ("kernels", config.kernels, KERNELS), ("quantization", config.quantization, QUANTIZATIONS),
        ("model_impl", config.model_impl, MODEL_IMPLS), ("use_cuda_graph", config.use_cuda_graph, CUDA_GRAPH_MODES),
    ):  # fmt: skip
        if value not in known:
            raise ConfigError(f"{name} {value!r} is unknown; known are {', '.join(known)}", option=name)
    check_backend_name(config.attention_backend)
    if config.cpu_threads is not None and config.cpu_threads < 1:
        raise ConfigError(f"cpu_threads must be at least 1, got {config.cpu_threads}", option="cpu_threads")
    is_native = config.quantization in NATIVE_QUANTIZATIONS
    if config.quantization == FLOAT8_QUANTIZATION:
        check_float8(config)
    if is_native and config.kernels == "torch":
        message = f"quantization {config.quantization!r} needs the native kernels; do not set kernels to 'torch'"
        raise ConfigError(message, option="quantization")
    if config.attention_backend != AUTO and (is_native or config.kernels == "native"):
        message = "the native kernels have their own attention; do not set attention_backend"
        raise ConfigError(message, option="attention_backend")


def refuse_float8(config: RunnerConfig, architecture: str) -> None:
    """Raise ConfigError for weights of 8-bit floats in a model that transformers' modules compute."""
    if config.quantization == FLOAT8_QUANTIZATION:
        raise ConfigError(
            f"quantization 'fp8': {architecture} is computed by transformers' modules, whose weights and experts are "
            "not quantized to 8-bit floats; leave quantization out, or choose one of Chairlift's own architectures",
            option="quantization",
        )


def check_float8(config: RunnerConfig) -> None:
    """Raise ConfigError for options that weights of 8-bit floats do not support, whatever the model."""
    for name, value in (("kernels", "native"), ("model_impl", "transformers")):
        if getattr(config, name) == value:
            raise ConfigError(
                "quantization 'fp8' is for torch's kernels and Chairlift's own architectures, not for "
                f"{name} {value!r}; leave {name} out, or choose another quantization", option="quantization",
            )  # fmt: skip
