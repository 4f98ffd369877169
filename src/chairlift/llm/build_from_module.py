"""build_module_client, start_module_loop: join an engine with a runner of a model that is loaded already."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.llm.build import runner_config, validate_options
from chairlift.llm.options import Options

CACHE_SHARE = 0.5
"""Share of the free memory that a cache made by hand may use."""


def build_module_client(module: Any, options: Options) -> InlineClient:
    """Start an inline engine of a loaded model of transformers, whose parameters are shared.

    Raises ConfigError for an invalid option, ModelError for a model that cannot run.
    """
    from chairlift.model.runner.torch_runner import TorchRunner
    from chairlift.model.transformers.model_loading_and_layer_measurement import load_module

    values: dict[str, Any] = dict(options)
    scheduler, config = validate_options(options), runner_config(None, values)
    if (ranks := config.tensor_parallel_size) > 1:
        message = f"tensor_parallel_size is {ranks}, a loaded model runs on one device; pass its folder instead"
        raise ConfigError(message, option="tensor_parallel_size")
    runner = TorchRunner(config, load_module(module, config))
    return InlineClient(EngineLoop(runner, scheduler, enable_prefix_caching=values.get("enable_prefix_caching", True)))


@dataclass(frozen=True, slots=True)
class ModuleLoop:
    """An engine loop that a caller steps, and the keys and values of its runner.

    Attributes:
        loop: the loop, started.
        tensors: (keys, values) by layer index within a group, [blocks, block_size, kv heads, head_dim] each.
        places: for each layer (layer group, index within the group).
        num_kv_heads, head_dim: shape of a key.
    """

    loop: EngineLoop
    tensors: list[tuple[Any, Any]]
    places: tuple[tuple[int, int], ...]
    num_kv_heads: int
    head_dim: int


def start_module_loop(module: Any, scheduler: Scheduler) -> ModuleLoop:
    """Start the runner of a loaded model of transformers for a scheduler that exists already.

    Raises ConfigError if the scheduler's cache does not fit the model, ModelError for a model that cannot run.
    """
    from chairlift.model.runner.torch_runner import TorchRunner
    from chairlift.model.transformers.model_loading_and_layer_measurement import load_module

    cache, own = scheduler.cache.config, scheduler.config
    values: dict[str, Any] = {
        "block_size": cache.block_size, "num_blocks": cache.num_blocks, "max_batch_tokens": own.max_batch_tokens,
        "max_running_requests": own.max_running_requests,
    }  # fmt: skip
    config = runner_config(None, values)
    runner = TorchRunner(config, load_module(module, config))
    loop = EngineLoop(runner, own, enable_prefix_caching=cache.enable_prefix_caching)
    loop.start(scheduler)
    model, tensors = runner.model, [(each.key, each.value) for each in runner.kv_cache]
    shape = model.groups.caches[0].shape
    return ModuleLoop(loop, tensors, model.groups.places, shape.num_kv_heads, shape.head_dim)


def group_layers(windows: Sequence[int | None]) -> tuple[tuple[int | None, ...], tuple[tuple[int, int], ...]]:
    """Return the window of each layer group, and for each layer (layer group, index within the group)."""
    from chairlift.model.config.layer_groups import AttentionShape, LayerGroups

    groups = LayerGroups.of(windows, (AttentionShape(1, 1),) * len(windows))  # all have one shape, whichever it is
    return groups.windows, groups.places


def num_fitting_blocks(block_bytes: int, device: Any) -> int:
    """Return how many blocks fit into CACHE_SHARE of a device's free memory, at least 1. Raises ConfigError."""
    import torch

    from chairlift.model.runner.free_memory import free_memory

    return max(1, int(free_memory(torch.device(device)).num_bytes * CACHE_SHARE) // block_bytes)
