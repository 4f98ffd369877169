"""ModelReport: reports the machine's devices and a model folder's memory needs, without loading the model."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.model.backends.trial_product import trial_product
from chairlift.model.batch.kv_cache_shape import KVCacheShape, check_num_blocks
from chairlift.model.config.attention_backend_names import installed_backends
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.device_option import (
    check_kv_cache_device,
    check_quantization_device,
    check_state_device,
    pick_device,
)
from chairlift.model.config.layer_groups import LayerGroups
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.runner_config import FILE_QUANTIZATION, RunnerConfig, compute_dtype, selects_native_kernels
from chairlift.model.config.runner_option_checks import check_options, refuse_float8
from chairlift.model.config.select_model_config import NATIVE, TRANSFORMERS, read_config
from chairlift.model.config.state_layers import STATE_CHUNK_TOKENS
from chairlift.model.config.transformers_config import TransformersConfig
from chairlift.model.device.dtypes import DTYPES, resolve_dtype
from chairlift.model.kernels.cpu.instruction_sets import instruction_sets, selected_instruction_set
from chairlift.model.kernels.cpu.kernel_cpus import chosen_cpus
from chairlift.model.kernels.cpu.weight_kinds import KINDS
from chairlift.model.loading.model_building import parameter_shapes
from chairlift.model.runner.free_memory import FreeMemory, free_memory, host_readings
from chairlift.model.runner.kv_cache_sizing import KVCacheSize, size_kv_cache
from chairlift.model.runner.longest_length import size_for_longest
from chairlift.model.runner.model_facts import weight_bytes
from chairlift.model.runner.state_cache_sizing import plan_states
from chairlift.model.runner.step_memory_estimate import memory_shapes
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.shard import Shard, check_shards

LENGTHS = (256, 1024, 4096, 16384, 65536)
PRODUCT_REPEATS = 10
"""Products of each kind of weight, of which the best counts."""

UNLIMITED = 2**60
"""Bytes; a cgroup without a limit reports a larger number."""

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of parameters by name."""


def inspect_machine() -> dict[str, Any]:
    """Return devices and their dtypes, torch's threads, limits of memory and attention backends, as plain values."""
    devices: list[dict[str, Any]] = [{
        "name": "cpu", "description": torch.backends.cpu.get_cpu_capability(), "memory_total": None,
        "memory_free": None, "dtypes": list(DTYPES), "native_bfloat16": bool(_cpu_has_bfloat16()),
        "compute_capability": None,
    }]  # fmt: skip
    has_cuda = torch.cuda.is_available()
    for index in range(torch.cuda.device_count() if has_cuda else 0):
        (free, total), capability = torch.cuda.mem_get_info(index), torch.cuda.get_device_capability(index)
        devices.append({
            "name": f"cuda:{index}", "description": torch.cuda.get_device_name(index), "memory_total": total,
            "memory_free": free, "dtypes": list(DTYPES),
            "native_bfloat16": capability >= (8, 0), "compute_capability": f"{capability[0]}.{capability[1]}",
        })  # fmt: skip
    built = torch.version.cuda
    missing = "torch is built without CUDA" if built is None else "torch finds no CUDA device"
    return {
        "devices": devices,
        "cuda": {"version": built, "missing": None if has_cuda else missing},
        "threads": torch.get_num_threads(),
        "memory_limits": [
            {"bytes": one.num_bytes, "limit": one.limit}
            for one in dict.fromkeys(host_readings())
            if one.num_bytes < UNLIMITED
        ],
        "attention_backends": installed_backends(),
        "kernels": _kernels(),
    }


def _product(kind: str) -> dict[str, Any]:
    product = trial_product(kind, selected_instruction_set(), PRODUCT_REPEATS)
    return asdict(product) | {"summary": str(product)}


def _kernels() -> dict[str, Any]:
    """Return the native kernels' instruction sets and threads, or why the kernels are missing."""
    try:
        kernels = {
            "sets": list(instruction_sets()),
            "chosen": selected_instruction_set(),
            "threads": len(chosen_cpus(None)),
            "products": [_product(kind) for kind in KINDS],
        }
        return kernels | {"missing": None}
    except ConfigError as error:
        return {"sets": [], "chosen": None, "threads": None, "products": [], "missing": error.message}


@dataclass(slots=True)
class ModelReport:
    """The needs of a model folder: `facts` holds the values that could be determined, `problems` the errors."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[ChairliftError] = field(default_factory=list)

    def attempt(self, action: Callable[[], T]) -> T | None:
        """Call `action` and return its result; a ChairliftError becomes a problem."""
        try:
            return action()
        except ChairliftError as error:
            self.problems.append(error)
            return None


def inspect_model(folder: Path, options: RunnerConfig) -> ModelReport:
    """Read config.json and the headers of the weights; size the cache as a start with these options would."""
    report = ModelReport()
    try:
        check_options(options)
    except ConfigError as error:
        report.problems.append(error)
        options = RunnerConfig()
    config = report.attempt(lambda: read_config(folder, options.model_impl))
    if config is not None:
        config, shapes, checkpoint = _read_weights(report, folder, config)
        config = replace(config, dtype=resolve_dtype(options.dtype, config.dtype))
        report.facts |= {
            "architecture": config.architecture, "dtype": config.dtype,
            "parameters": sum(map(math.prod, shapes.values())),
            "model_impl": NATIVE if isinstance(config, DecoderConfig) else TRANSFORMERS,
        }  # fmt: skip
        if isinstance(config, TransformersConfig):
            config = _measure_layers(report, folder, config)
            report.attempt(lambda: refuse_float8(options, config.architecture))
        _size_memory(report, options, config, shapes, checkpoint)
    return report


def _measure_layers(report: ModelReport, folder: Path, config: TransformersConfig) -> TransformersConfig:
    """Report how transformers' layers would run; returns the config with their sizes, if no weights are needed."""
    from chairlift.model.transformers.model_loading_and_layer_measurement import measure_layers

    layers = report.attempt(lambda: measure_layers(folder, config))
    if layers is None:
        return config
    counts = [(window, layers.windows.count(window)) for window in dict.fromkeys(layers.windows)]
    kinds = (
        f"{count} with " + ("all tokens" if window is None else f"a window of {window}") for window, count in counts
    )
    report.facts["layers"] = f"{', '.join(kinds)}; {layers.report}"
    return replace(
        config, num_kv_heads=layers.num_kv_heads, head_dim=layers.head_dim, layer_windows=layers.windows
    )  # fmt: skip


def _read_weights(
    report: ModelReport, folder: Path, config: ModelConfig
) -> tuple[ModelConfig, Shapes, Checkpoint | None]:  # fmt: skip
    """Read the headers of the weights; returns the config completed from them, and the shapes of the parameters."""
    checkpoint = report.attempt(lambda: Checkpoint.open(folder, config.architecture))
    if checkpoint is None:
        return config, parameter_shapes(config) if isinstance(config, DecoderConfig) else {}, None
    report.facts["stored_types"] = checkpoint.stored_types()
    if isinstance(config, DecoderConfig):
        resolved = replace(
            config,
            dtype=resolve_dtype("auto", config.dtype or checkpoint.dtype()),
            tie_word_embeddings=checkpoint.resolve_tied_embeddings(config.tie_word_embeddings),
        )
        shapes = parameter_shapes(resolved)
        report.facts["checkpoint_dtype"] = resolved.dtype
        checkpoint.arrange(resolved, shapes)
        report.attempt(lambda: checkpoint.check(shapes))
        return resolved, shapes, checkpoint
    config = replace(config, dtype=resolve_dtype("auto", config.dtype or checkpoint.largest_dtype()))
    report.facts["checkpoint_dtype"] = config.dtype
    return config, {name: stored.shape for name, stored in checkpoint.tensors.items()}, checkpoint


def _size_memory(
    report: ModelReport, options: RunnerConfig, config: ModelConfig, shapes: Shapes, checkpoint: Checkpoint | None
) -> None:  # fmt: skip
    """Compute the memory of weights, step and cache on the device of the options."""
    device = report.attempt(lambda: pick_device(options.device))
    on_cpu = device is not None and device.type == "cpu"
    is_native = isinstance(config, DecoderConfig) and selects_native_kernels(options, config.dtype, on_cpu=on_cpu)
    keeps_codes = is_native and options.quantization == FILE_QUANTIZATION
    kept = report.attempt(checkpoint.code_bytes) if keeps_codes and checkpoint is not None else None
    weights = weight_bytes(shapes, config.dtype or "", options.quantization, kept)
    report.facts["weight_bytes"] = weights
    max_model_len = report.attempt(lambda: config.context_length(options.max_model_len))
    if device is None or max_model_len is None:
        return
    report.attempt(lambda: check_quantization_device(options.quantization, device))
    report.attempt(lambda: check_kv_cache_device(options.kv_cache_dtype, device))
    report.attempt(lambda: check_state_device(config, device, options.block_size))
    report.facts |= {"device": str(device), "max_model_len": max_model_len, "model_limit": config.max_context}
    config = replace(config, dtype=compute_dtype(options, config.dtype, on_cpu=device.type == "cpu"))
    free = report.attempt(lambda: free_memory(device))
    if free is not None:
        ranks, shares_memory = options.tensor_parallel_size, device.type != "cuda"
        own_bytes = free.num_bytes // ranks if shares_memory else free.num_bytes
        own_free = max(0, own_bytes - weights // ranks)
        left = FreeMemory(own_free, f"{free.limit}, less the weights", ranks if shares_memory else 1)
        report.attempt(lambda: _size(report, options, config, max_model_len, left))


def _size(
    report: ModelReport, options: RunnerConfig, config: ModelConfig, max_model_len: int, free: FreeMemory
) -> None:
    check_shards(config, options.tensor_parallel_size)
    if isinstance(config, DecoderConfig):
        config = Shard(0, options.tensor_parallel_size).step_sizes(config)
    groups = config.layer_groups
    on_host = not report.facts["device"].startswith("cuda")
    pool, step = memory_shapes(options, config, groups, max_model_len)
    shapes = [replace(shape, chunk_tokens=0 if on_host else STATE_CHUNK_TOKENS) for shape in config.state_shapes]
    states = plan_states(options, config, free, step.peak_bytes(), pool, shapes=shapes, on_host=on_host)
    num_running, reserved = options.max_running_requests, 0
    if states is not None:
        num_running, reserved = states.num_slots, states.num_bytes
        report.facts |= {"state_bytes": states.state_bytes, "state_checkpoints": states.num_checkpoints}

    def size(length: int) -> tuple[KVCacheShape, KVCacheSize]:
        pool, step = memory_shapes(options, config, groups, length)
        return pool, size_kv_cache(
            pool,
            step,
            free,
            on_host=on_host,
            max_memory=options.max_memory,
            num_blocks=options.num_blocks,
            reserved=reserved,
        )

    if options.fits_length_to_cache:
        max_model_len, _ = size_for_longest(size, groups.windows, max_model_len)
        report.facts["max_model_len"] = max_model_len
    pool, step = memory_shapes(options, config, groups, max_model_len)
    report.facts |= {
        "kv_bytes_per_token": pool.page_bytes * pool.groups // pool.block_size,
        "step_bytes": step.peak_bytes(), "block_size": options.block_size,
    }  # fmt: skip
    if options.num_blocks is not None and options.max_model_len is not None:
        check_num_blocks(pool, groups.windows, options.num_blocks)
    _, sized = size(max_model_len)
    lengths = sorted({*(length for length in LENGTHS if length < max_model_len), max_model_len})
    report.facts |= {
        "num_blocks": sized.num_blocks,
        "kv_bytes": sized.num_blocks * pool.page_bytes,
        "tokens": sized.num_blocks // pool.groups * pool.block_size,
        "requests_by_length": {
            str(length): min(num_running, sized.num_blocks // _blocks(pool, groups, length)) for length in lengths
        },
    }


def _blocks(pool: KVCacheShape, groups: LayerGroups, length: int) -> int:
    """Return the blocks that one sequence of this length holds; blocks behind a window are freed.

    The last token is never an input, so it needs no block.
    """
    whole = math.ceil((length - 1) / pool.block_size)
    return sum(
        whole if window is None else min(whole, math.ceil(window / pool.block_size) + 1) for window in groups.windows
    )


def _cpu_has_bfloat16() -> bool:
    """Return whether the CPU has bfloat16 multiplication (AVX-512 BF16 or AMX)."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags or "bf16" in flags.split()
