"""BATCHING and GENERATION: what each option of transformers becomes here, or why it has no effect or is refused.

BATCHING    fields of ContinuousBatchingConfig, and those that older versions of transformers had in GenerationConfig
GENERATION  the other fields of GenerationConfig, some of which a request may set for itself
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from numbers import Integral
from typing import Any

from chairlift.core.bounds import MAX_INT32
from chairlift.core.validation import boolean, integer, invalid_param, number


class Use(Enum):
    """What an option of transformers is."""

    ENGINE = "an option of the engine"
    MANAGER = "an option of the manager"
    SAMPLING = "a sampling parameter"
    NONE = "without effect, which is logged once"
    SILENT = "without effect, as in transformers' continuous batching"
    REFUSED = "refused, because the output would be another one"


Check = Callable[[str, Any], Any]

SCHEDULERS = ("fifo", "prefill_first")


@dataclass(frozen=True, slots=True)
class ConfigField:
    """One option.

    Attributes:
        use: what it is.
        name: its name here, where it has another one.
        reason: why it has no effect, or is refused; a sentence without its end.
        default: the value that means the same as None.
        neutral: values of a refused option, or one without effect, that are the same as its absence.
        check: returns the plain value of an option with this name, or raises InvalidRequest; None where the engine
            checks the value under the same name.
    """

    use: Use
    name: str = ""
    reason: str = ""
    default: Any = None
    neutral: tuple[Any, ...] = ()
    check: Check | None = None


def _engine(name: str = "", *, check: Check | None = None, default: Any = None) -> ConfigField:
    return ConfigField(Use.ENGINE, name, default=default, check=check)


def _manager(name: str = "", default: Any = None) -> ConfigField:
    return ConfigField(Use.MANAGER, name, default=default)


def _none(reason: str, *neutral: Any, default: Any = None) -> ConfigField:
    return ConfigField(Use.NONE, reason=reason, default=default, neutral=neutral)


def _refused(reason: str, *neutral: Any) -> ConfigField:
    return ConfigField(Use.REFUSED, reason=reason, neutral=neutral)


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

_NO_GRAPHS = "the engine's graphs have sizes of its own"
_NO_COMPILE = "nothing is compiled"
_ONE_DEVICE = "a model runs on one device"
_SAMPLED = ConfigField(Use.SAMPLING)
_QUIET = ConfigField(Use.SILENT)

BATCHING: Mapping[str, ConfigField] = {
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
    "max_blocks_per_request": _none("a request may have any number of blocks"),
    "use_cuda_graph": _engine(check=_graphs),
    "max_cached_graphs": _none(_NO_GRAPHS),
    "q_padding_interval_size": _none(_NO_GRAPHS, default=0),
    "kv_padding_interval_size": _none(_NO_GRAPHS, default=0),
    "disable_nccl_graph_mixing": _none(_NO_GRAPHS, default=True),
    "varlen_compile_config": _none(_NO_COMPILE),
    "decode_compile_config": _none(_NO_COMPILE),
    "default_compile_level": _none(_NO_COMPILE, default=0),
    "use_default_compile_configs": _none(_NO_COMPILE, False),
    "compile_config": _none(_NO_COMPILE),
    "disable_compile": _QUIET,
    "num_q_padding_intervals": _none(_NO_GRAPHS, default=0),
    "num_kv_padding_intervals": _none(_NO_GRAPHS, default=0),
    "num_q_cuda_graphs": _none(_NO_GRAPHS, default=0),
    "num_kv_cuda_graphs": _none(_NO_GRAPHS, default=0),
    "slice_inputs": _none("every step computes only the tokens that it needs", default=True),
    "manual_eviction": _none("the blocks of a request are freed when it ends", default=False),
    "sliding_window": _none("the model's own windows apply"),
    "auto_switch_to_flash": _none("the attention of the model itself does not change", False, default=True),
    "cpu_offload_space": _none("preempted requests are computed again", default=0.0),
    "cpu_offload_space_safety_threshold": _none("preempted requests are computed again", default=0.8),
    "per_request_processors": _none("every request may have its own parameters", True, default=False),
    "drop_unsupported_processors": _none("parameters that are not supported are refused", default=True),
    "cpu_group_timeout": _none(_ONE_DEVICE, default=300.0),
}
"""Options of batching."""

_BEAMS = "there is no beam search"
_ASSISTED = "there is no assisted generation"

GENERATION: Mapping[str, ConfigField] = {
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
    "min_new_tokens": ConfigField(Use.SAMPLING, "min_tokens"),
    "num_beams": _refused(_BEAMS, 1),
    "num_beam_groups": _refused(_BEAMS, 1),
    "diversity_penalty": _refused(_BEAMS, 0.0),
    "length_penalty": _none(_BEAMS, default=1.0),
    "early_stopping": _none(_BEAMS, default=False),
    "constraints": _refused(_BEAMS),
    "force_words_ids": _refused(_BEAMS),
    "top_h": _refused("there is no top_h sampling; use min_p or top_p"),
    "penalty_alpha": _refused("there is no contrastive search", 0.0),
    "dola_layers": _refused("there is no DoLa decoding"),
    "guidance_scale": _refused("there is no classifier-free guidance", 1.0),
    "watermarking_config": _refused("there is no watermarking"),
    "sequence_bias": _refused("use bad_words_ids, or logit_bias of a request"),
    "suppress_tokens": _refused("use bad_words_ids", []),
    "begin_suppress_tokens": _refused("use bad_words_ids", []),
    "forced_bos_token_id": _refused("no token can be forced"),
    "forced_eos_token_id": _refused("no token can be forced"),
    "exponential_decay_length_penalty": _refused("use max_new_tokens"),
    "encoder_repetition_penalty": _refused("use repetition_penalty", 1.0),
    "encoder_no_repeat_ngram_size": _refused("use no_repeat_ngram_size", 0),
    "min_length": _refused("use min_new_tokens", 0),
    "stop_strings": _refused("a manager has no tokenizer; use stop_token_ids, or chairlift.LLM with `stop`"),
    "max_time": _refused("use add_request(..., timeout=seconds)"),
    "token_healing": _refused("there is no token healing", False),
    "use_mtp": _refused(_ASSISTED, False),
    "is_assistant": _refused(_ASSISTED, False),
    "prompt_lookup_num_tokens": _refused(_ASSISTED),
    "assistant_early_exit": _refused(_ASSISTED),
    "num_assistant_tokens": _QUIET,
    "num_assistant_tokens_schedule": _QUIET,
    "assistant_confidence_threshold": _QUIET,
    "assistant_lookbehind": _QUIET,
    "assistant_ensemble_weight": _QUIET,
    "target_lookbehind": _QUIET,
    "max_matching_ngram_size": _QUIET,
    "speculation_type": _QUIET,
    "renormalize_logits": _none("logits are always renormalized", default=False),
    "remove_invalid_values": _none("a request whose logits are not finite fails alone", default=False),
    "output_attentions": _none("outputs have tokens and logprobs", default=False),
    "output_hidden_states": _none("outputs have tokens and logprobs", default=False),
    "output_scores": _none("outputs have tokens and logprobs", default=False),
    "output_logits": _none("outputs have tokens and logprobs", default=False),
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
    "quantization", "cpu_threads", "packed_weights_dir", "revision", "deterministic", "tensor_parallel_size",
)  # fmt: skip
"""Options of Chairlift's engine that a manager takes, too."""
