"""select_backend: chooses by the options what runs a model of Chairlift's own architectures."""

from dataclasses import replace
from pathlib import Path

import torch

from chairlift.core.errors import ConfigError
from chairlift.model.backends.model_backend import ModelBackend
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.config.attention_backend_names import AUTO
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.runner_config import FLOAT8_QUANTIZATION, NATIVE_QUANTIZATIONS, RunnerConfig
from chairlift.model.device.dtypes import AUTO_DTYPE, torch_dtype


def select_backend(
    config: RunnerConfig, model: DecoderConfig, device: torch.device, name: str | None = None
) -> ModelBackend:
    """Choose the backend of a model by the options; `model` has the dtype as loaded, `name` identifies its weights.

    Raises ConfigError if native kernels are required, by name or for a quantization, and cannot run the model, and for
    the option `deterministic` where rows depend on their batch.
    """
    from chairlift.model.backends.native_backend import NativeBackend, check_fit

    needed, why = config.kernels == "native" or config.quantization in NATIVE_QUANTIZATIONS, "torch"
    if config.quantization == FLOAT8_QUANTIZATION:
        why = f"torch (quantization is {config.quantization})"
    elif config.kv_cache_dtype != AUTO_DTYPE:
        why = f"torch (kv_cache_dtype is {config.kv_cache_dtype})"
    elif config.enable_lora:
        why = "torch (enable_lora is set)"
    elif config.kernels != "torch" and config.attention_backend == AUTO:
        try:
            check_fit(model, device, config.block_size)
            packed_file = None
            if config.packed_weights_dir is not None and name is not None:
                packed_file = Path(config.packed_weights_dir).expanduser() / f"{name}.packed"
            return NativeBackend(config.quantization, config.cpu_threads, packed_file, str(model.dtype))
        except ConfigError as error:
            if needed:
                raise
            why = f"torch ({error.message})"
    backend = TorchBackend.best(
        torch_dtype(model.dtype), device, deterministic=config.deterministic, quantization=config.quantization
    )
    return replace(backend, why=why, adapts=config.enable_lora)
