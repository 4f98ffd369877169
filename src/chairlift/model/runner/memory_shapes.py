"""memory_shapes: derives KV cache and activation sizes from a model's config and the options, before loading it."""

from chairlift.model.layers.causal_lm import LayerGroups
from chairlift.model.loading.model_config import ModelConfig
from chairlift.model.loading.registry import torch_dtype
from chairlift.model.runner.kv_memory import ActivationShape, KVCacheShape
from chairlift.model.runner.runner_config import RunnerConfig


def memory_shapes(
    config: RunnerConfig, model: ModelConfig, groups: LayerGroups, max_model_len: int
) -> tuple[KVCacheShape, ActivationShape]:
    """Return the shapes that decide the size of the pool and of the largest step; `model` has the dtype as loaded."""
    itemsize = torch_dtype(model.dtype).itemsize
    pool = KVCacheShape(
        groups=len(groups.windows),
        layers_per_group=groups.layers_per_group,
        block_size=config.block_size,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        itemsize=itemsize,
        max_running_requests=config.max_running_requests,
        max_model_len=max_model_len,
    )
    step = ActivationShape(
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        itemsize=itemsize,
        max_batch_tokens=config.max_batch_tokens,
        max_running_requests=config.max_running_requests,
        max_model_len=max_model_len,
        windows=groups.windows,
    )
    return pool, step
