"""load: loads the model that the runner's options name, onto their device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.model.attention.registry import backend_factory
from chairlift.model.backends.communicator import Communicator
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.backends.model_backend import ModelBackend
from chairlift.model.backends.select_backend import select_backend
from chairlift.model.backends.sharded_backend import ShardedBackend
from chairlift.model.config.attention_backend_names import check_cache_shapes
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.device_option import (
    check_kv_cache_device,
    check_quantization_device,
    check_state_device,
    pick_device,
)
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.runner_config import FILE_QUANTIZATION, UNQUANTIZED, RunnerConfig, cache_name
from chairlift.model.config.runner_option_checks import check_options
from chairlift.model.config.select_model_config import read_config
from chairlift.model.config.transformers_config import TransformersConfig
from chairlift.model.device.triton_package import check_triton
from chairlift.model.loading.model_building import load_model
from chairlift.model.loading.tiny_model import tiny_model
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.checkpoint_fingerprint import fingerprint
from chairlift.model.weights.formats.registry import is_safetensors


def load(config: RunnerConfig, communicator: Communicator | None = None) -> LoadedModel:
    """Load the model of the options, or with a communicator one rank's part of it. Raises ConfigError and ModelError.

    An attention backend that cannot run is refused before weights are read. The model must pass check_shards.
    """
    check_options(config)
    device = pick_device(config.device)
    check_triton(str(device))
    check_kv_cache_device(config.kv_cache_dtype, device)
    check_quantization_device(config.quantization, device)
    if config.model and isinstance(shape := read_config(Path(config.model), config.model_impl), TransformersConfig):
        if config.enable_lora:
            raise ConfigError(
                f"enable_lora needs Chairlift's own architectures, but transformers' modules run {shape.architecture}",
                option="enable_lora",
            )
        from chairlift.model.transformers.model_loading_and_layer_measurement import load_folder

        return load_folder(Path(config.model), shape, config, device)
    chosen: list[ModelBackend] = []

    def choose_backend(shape: DecoderConfig) -> ModelBackend:
        check_state_device(shape, device, config.block_size)
        name = _name_of(config, shape) if config.model else None
        backend = (
            select_backend(config, shape, device, name)
            if communicator is None
            else ShardedBackend.of(
                shape, communicator, device, deterministic=config.deterministic, quantization=config.quantization
            )
        )
        if backend.attention() is None:
            check_cache_shapes(config.attention_backend, shape.layer_groups)
            backend_factory(config.attention_backend, str(device), str(shape.dtype), deterministic=config.deterministic)
        chosen.append(backend)
        return backend

    common_arguments: Any = {
        "dtype": config.dtype, "device": device, "max_model_len": config.max_model_len,
        "choose_backend": choose_backend, "shard": None if communicator is None else communicator.shard,
    }  # fmt: skip
    if config.model == "":
        model, shape = tiny_model(seed=config.seed, **common_arguments)
    else:
        model, shape = load_model(Path(config.model), **common_arguments)
    weights_dtype, model_backend = str(shape.dtype), chosen[0]
    computed = replace(shape, dtype=model_backend.compute_dtype(weights_dtype))
    kept = model_backend.kept
    used = "none" if config.quantization == FILE_QUANTIZATION and kept is None else config.quantization
    name = _name_of(replace(config, quantization=used), shape, computed)
    attention, report, sampling_ops = model_backend.attention(), model_backend.report(), model_backend.sampling_ops()
    if config.model and not is_safetensors(Path(config.model)):
        stored = Checkpoint.open(Path(config.model), shape.architecture).stored_types()
        report = (*report, ("stored weights", stored))
    return LoadedModel(
        model, computed, device, name, attention, model_backend.chunk_tokens, model_backend.cpus, report, sampling_ops,
        model_backend.torch_threads, communicator, weights_dtype, kept,
    )  # fmt: skip


def _name_of(config: RunnerConfig, shape: ModelConfig, computed: ModelConfig | None = None) -> str:
    """Return an identifier of the weights, their dtype and quantization, and of the cache's dtype if it is another.

    `computed` has the dtype of activations; the file of packed weights does not depend on it. The identifier of a model
    whose codes were not kept has the quantization "none", whatever the option was: the numbers are the same.
    """
    cache = cache_name(config, shape.dtype, shape.dtype if computed is None else computed.dtype)
    if config.model == "":
        quantization = "" if config.quantization in UNQUANTIZED else f" {config.quantization}"
        return f"tiny-random-{config.seed}-{shape.dtype}{quantization}{cache}"
    folder = Path(config.model)
    is_plain = config.quantization in UNQUANTIZED and is_safetensors(folder)
    return fingerprint(folder, f"{shape.dtype} {'none' if is_plain else config.quantization}{cache}")
