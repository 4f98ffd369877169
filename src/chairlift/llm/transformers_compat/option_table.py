"""BATCHING and GENERATION: what each option of transformers becomes here, or why it has no effect or is refused.

BATCHING    fields of ContinuousBatchingConfig, and those that older versions of transformers had in GenerationConfig
GENERATION  the other fields of GenerationConfig, some of which a request may set for itself
"""

import os
from collections.abc import Mapping
from enum import Enum
from functools import partial
from numbers import Integral
from typing import Any

from chairlift.core.foreign_options import GRAPHS, NO_SWAP, ForeignOption, alias, in_names, no_effect, refused
from chairlift.core.numeric_limits import MAX_INT32
from chairlift.core.validation import boolean, integer, invalid_param, number


class OptionPart(Enum):
    """What has the setting of an alias."""

    ENGINE = "engine"
    MANAGER = "manager"
    SAMPLING = "manager and request"


SCHEDULERS = ("fifo", "prefill_first")

_engine = partial(alias, part=OptionPart.ENGINE)
_manager = partial(alias, part=OptionPart.MANAGER)


def _share_or_bytes(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, Integral):
        return number(name, value, 0, 1, open_low=True)
    return integer(name, value, 1, 2**63 - 1)


def _graphs(name: str, value: Any) -> Any:
    """Return the mode: transformers has a flag, or one for each of two kinds of steps."""
    flags = [boolean(name, flag) for flag in (value if isinstance(value, tuple | list) else (value,))]
    return "auto" if any(flags) else "off"


def _scheduler(name: str, value: Any) -> Any:
    if value not in SCHEDULERS:
        raise invalid_param(name, f"must be {' or '.join(map(repr, SCHEDULERS))}, got {value!r}")
    return value


def _file_or_flag(name: str, value: Any) -> Any:
    if not isinstance(value, str | bool | os.PathLike):
        raise invalid_param(name, f"must be the path of a file, got {type(value).__name__}")
    return value if isinstance(value, bool) else os.fspath(value)


_count = partial(integer, low=1, high=MAX_INT32)
_share = partial(number, low=0, high=1, open_low=True)

_GRAPHS = in_names(GRAPHS)
_ONE_DEVICE = "a model runs on one device"
_SAMPLED = alias(part=OptionPart.SAMPLING)
_QUIET = no_effect()
"""It has no effect in transformers' continuous batching either."""

BATCHING: Mapping[str, ForeignOption] = {
    "page_size": _engine("block_size", check=_count, default=256),
    "block_size": _engine(check=_count),
    "num_blocks": _engine(check=_count),
    "max_batch_tokens": _engine(check=_count),
    "max_memory_percent": _engine("max_memory", check=_share),
    "max_memory": _engine(check=_share_or_bytes),
    "max_requests_per_batch": _engine("max_running_requests", check=_count),
    "allow_block_sharing": _engine("enable_prefix_caching", check=boolean, default=True),
    "use_async_batching": _engine("overlap", check=boolean),
    "scheduler_type": _engine("batching_policy", check=_scheduler, default="fifo"),
    "scheduler": _engine("batching_policy", check=_scheduler, default="fifo"),
    "safety_margin": _engine(check=partial(number, low=0, high=1)),
    "profile": _engine(check=_file_or_flag),
    "max_queue_size": _manager(default=0),
    "return_logprobs": _manager(default=False),
    "seed": _manager(),
    "max_blocks_per_request": no_effect("a request may have any number of blocks"),
    "use_cuda_graph": _engine(check=_graphs),
    "max_cached_graphs": no_effect(_GRAPHS),
    "q_padding_interval_size": no_effect(_GRAPHS, default=0),
    "kv_padding_interval_size": no_effect(_GRAPHS, default=0),
    "disable_nccl_graph_mixing": no_effect(_GRAPHS, default=True),
    "varlen_compile_config": no_effect(_GRAPHS),
    "decode_compile_config": no_effect(_GRAPHS),
    "default_compile_level": no_effect(_GRAPHS, default=0),
    "use_default_compile_configs": no_effect(_GRAPHS, False),
    "compile_config": no_effect(_GRAPHS),
    "disable_compile": _QUIET,
    "num_q_padding_intervals": no_effect(_GRAPHS, default=0),
    "num_kv_padding_intervals": no_effect(_GRAPHS, default=0),
    "num_q_cuda_graphs": no_effect(_GRAPHS, default=0),
    "num_kv_cuda_graphs": no_effect(_GRAPHS, default=0),
    "slice_inputs": no_effect("every step computes only the tokens that it needs", default=True),
    "manual_eviction": no_effect("the blocks of a request are freed when it ends", default=False),
    "sliding_window": no_effect("the model's own windows apply"),
    "auto_switch_to_flash": no_effect("the attention of the model itself does not change", False, default=True),
    "cpu_offload_space": no_effect(NO_SWAP, default=0.0),
    "cpu_offload_space_safety_threshold": no_effect(NO_SWAP, default=0.8),
    "per_request_processors": no_effect("every request may have its own parameters", True, default=False),
    "drop_unsupported_processors": no_effect("parameters that are not supported are refused", default=True),
    "cpu_group_timeout": no_effect(_ONE_DEVICE, default=300.0),
}
"""Options of batching."""

_BEAMS = "there is no beam search"
_ASSISTED = "there is no assisted generation"

GENERATION: Mapping[str, ForeignOption] = {
    "max_new_tokens": _manager(),
    "max_length": _manager(),
    "eos_token_id": _manager(),
    "num_return_sequences": _manager(default=1),
    "do_sample": _manager(),
    "continuous_batching_config": _manager(),
    "temperature": _SAMPLED,
    "top_k": _SAMPLED,
    "top_p": _SAMPLED,
    "min_p": _SAMPLED,
    "typical_p": _SAMPLED,
    "epsilon_cutoff": _SAMPLED,
    "eta_cutoff": _SAMPLED,
    "repetition_penalty": _SAMPLED,
    "no_repeat_ngram_size": _SAMPLED,
    "bad_words_ids": _SAMPLED,
    "min_new_tokens": alias("min_tokens", part=OptionPart.SAMPLING),
    "num_beams": refused(_BEAMS, 1),
    "num_beam_groups": refused(_BEAMS, 1),
    "diversity_penalty": refused(_BEAMS, 0.0),
    "length_penalty": no_effect(_BEAMS, default=1.0),
    "early_stopping": no_effect(_BEAMS, default=False),
    "constraints": refused(_BEAMS),
    "force_words_ids": refused(_BEAMS),
    "top_h": refused("there is no top_h sampling; use min_p or top_p"),
    "penalty_alpha": refused("there is no contrastive search", 0.0),
    "dola_layers": refused("there is no DoLa decoding"),
    "guidance_scale": refused("there is no classifier-free guidance", 1.0),
    "watermarking_config": refused("there is no watermarking"),
    "sequence_bias": refused("use bad_words_ids, or logit_bias of a request"),
    "suppress_tokens": refused("use bad_words_ids", []),
    "begin_suppress_tokens": refused("use bad_words_ids", []),
    "forced_bos_token_id": refused("no token can be forced"),
    "forced_eos_token_id": refused("no token can be forced"),
    "exponential_decay_length_penalty": refused("use max_new_tokens"),
    "encoder_repetition_penalty": refused("use repetition_penalty", 1.0),
    "encoder_no_repeat_ngram_size": refused("use no_repeat_ngram_size", 0),
    "min_length": refused("use min_new_tokens", 0),
    "stop_strings": refused("a manager has no tokenizer; use stop_token_ids, or chairlift.LLM with `stop`"),
    "max_time": refused("use add_request(..., timeout=seconds)"),
    "token_healing": refused("there is no token healing", False),
    "use_mtp": refused(_ASSISTED, False),
    "is_assistant": refused(_ASSISTED, False),
    "prompt_lookup_num_tokens": refused(_ASSISTED),
    "assistant_early_exit": refused(_ASSISTED),
    "num_assistant_tokens": _QUIET,
    "num_assistant_tokens_schedule": _QUIET,
    "assistant_confidence_threshold": _QUIET,
    "assistant_lookbehind": _QUIET,
    "assistant_ensemble_weight": _QUIET,
    "target_lookbehind": _QUIET,
    "max_matching_ngram_size": _QUIET,
    "speculation_type": _QUIET,
    "renormalize_logits": no_effect("logits are always renormalized", default=False),
    "remove_invalid_values": no_effect("a request whose logits are not finite fails alone", default=False),
    "output_attentions": no_effect("outputs have tokens and logprobs", default=False),
    "output_hidden_states": no_effect("outputs have tokens and logprobs", default=False),
    "output_scores": no_effect("outputs have tokens and logprobs", default=False),
    "output_logits": no_effect("outputs have tokens and logprobs", default=False),
    "return_dict_in_generate": _QUIET,
    "use_cache": _QUIET,
    "cache_implementation": _QUIET,
    "cache_config": _QUIET,
    "max_cache_len": _QUIET,
    "prefill_chunk_size": _engine("max_chunk_tokens", check=_count),
    "low_memory": _QUIET,
    "pad_token_id": _QUIET,
    "bos_token_id": _QUIET,
    "decoder_start_token_id": _QUIET,
    "transformers_version": _QUIET,
    "_from_model_config": _QUIET,
}
"""Options of generation."""

OTHER_SAMPLING = (
    "seed", "presence_penalty", "frequency_penalty", "logit_bias", "min_tokens", "ignore_eos", "stop_token_ids",
    "allowed_token_ids", "logits_processors",
)  # fmt: skip
"""Sampling parameters of Chairlift, which a request may have besides those of GENERATION."""

ENGINE_OPTIONS = (
    "dtype", "device", "max_running_requests", "max_prefill_tokens", "max_chunk_tokens", "long_prefill_threshold",
    "max_model_len", "scheduling_policy", "batching_policy", "priority_ageing", "target_itl_ms",
    "enable_prefix_caching", "overlap", "model_impl", "kv_cache_dtype", "attention_backend", "kernels",
    "quantization", "cpu_threads", "packed_weights_dir", "revision", "hf_file", "deterministic",
    "tensor_parallel_size",
)  # fmt: skip
"""Options of Chairlift's engine that a manager takes, too."""
