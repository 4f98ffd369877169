"""check_start: finds invalid options before the engine starts and the weights are loaded. Imports no torch."""

from dataclasses import replace
from pathlib import Path

from chairlift.model.batch.kv_cache_shape import check_max_bytes, check_num_blocks, kv_cache_shape
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.runner_config import RunnerConfig, compute_dtype
from chairlift.model.config.runner_option_checks import check_options, refuse_float8
from chairlift.model.config.select_model_config import read_config
from chairlift.model.config.weight_checks import check_weights
from chairlift.model.device.dtypes import resolve_dtype
from chairlift.model.weights.shard import Shard, check_shards


def check_start(folder: Path | None, options: RunnerConfig, *, needs_full_length: bool = False) -> None:
    """Check the options against the bounds of a model folder, of whose weights only the headers are read.

    Args:
        folder: the model folder; None for the tiny random model, of which only the options are checked.
        options: the settings of the runner.
        needs_full_length: reject a `num_blocks` that cannot hold the model's own limit of tokens, too, not only one
            that cannot hold a `max_model_len` that is set.

    Raises ConfigError with the option, and ModelError for an unsupported model or a missing or truncated file. What
    depends on free memory and on the machine's devices is checked when the engine starts.
    """
    check_options(options)
    if folder is None:
        return
    config = read_config(folder, options.model_impl)
    check_shards(config, options.tensor_parallel_size)
    check_weights(folder)
    max_model_len = config.context_length(options.max_model_len)
    if not isinstance(config, DecoderConfig):
        refuse_float8(options, config.architecture)
        return  # the shape of the cache is known when transformers has loaded the model
    dtype = compute_dtype(options, resolve_dtype(options.dtype, config.dtype), on_cpu=options.device == "cpu")
    config = replace(config, dtype=dtype)
    config = Shard(0, options.tensor_parallel_size).config(config)
    groups = config.layer_groups
    pool = kv_cache_shape(options, config, groups, max_model_len)
    needs_full_length = (needs_full_length and not options.fits_length_to_cache) or options.max_model_len is not None
    if options.num_blocks is not None and needs_full_length:
        check_num_blocks(pool, groups.windows, options.num_blocks)
    elif options.num_blocks is None and isinstance(options.max_memory, int):
        num_sharers = options.tensor_parallel_size if options.device == "cpu" else 1
        check_max_bytes(pool, options.max_memory, num_sharers)
