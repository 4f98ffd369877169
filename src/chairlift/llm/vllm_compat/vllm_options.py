"""VLLM_OPTIONS: vLLM's constructor options and what each means here; resolve_options() applies the table."""

import difflib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from chairlift.core import foreign_options as reasons
from chairlift.core.errors import ConfigError, UnknownOption
from chairlift.core.foreign_options import ForeignOption, OptionEffect, alias, in_names, no_effect, refused
from chairlift.engine.config import AUTO_LENGTH
from chairlift.llm.options import Options

log = logging.getLogger(__name__)

_ONE_COPY = in_names(reasons.ONE_COPY)
_GRAPHS = in_names(reasons.GRAPHS)
_SPECULATION = in_names(reasons.SPECULATION)
_PARTIAL_PREFILLS = in_names(reasons.PARTIAL_PREFILLS)

VLLM_OPTIONS: Mapping[str, ForeignOption] = {
    # -- the same under another name
    "max_num_seqs": alias("max_running_requests"),
    "max_num_batched_tokens": alias("max_batch_tokens"),
    "gpu_memory_utilization": alias("max_memory", "a share of the memory that is free, for the KV cache alone"),
    "kv_cache_memory_bytes": alias("max_memory", "bytes"),
    "num_gpu_blocks_override": alias("num_blocks"),
    "long_prefill_token_threshold": alias("long_prefill_threshold"),
    "async_scheduling": alias("overlap"),
    "enforce_eager": alias("use_cuda_graph"),
    # -- accepted without effect
    "compilation_config": no_effect(_GRAPHS),
    "max_seq_len_to_capture": no_effect(_GRAPHS),
    "cudagraph_capture_sizes": no_effect(_GRAPHS),
    "cuda_graph_sizes": no_effect(_GRAPHS),
    "swap_space": no_effect(reasons.NO_SWAP),
    "preemption_mode": no_effect(reasons.NO_SWAP),
    "trust_remote_code": no_effect(reasons.NO_CODE),
    "disable_log_stats": no_effect("LLM and AsyncLLM log no statistics; call load() and scheduler_state()"),
    "disable_log_requests": no_effect("requests are not logged"),
    "enable_log_requests": no_effect("requests are not logged"),
    "otlp_traces_endpoint": no_effect("LLM and AsyncLLM send no traces; `chairlift serve --otlp-endpoint` does"),
    "disable_custom_all_reduce": no_effect(_ONE_COPY),
    "distributed_executor_backend": refused(_ONE_COPY, "mp", "uni"),
    "max_parallel_loading_workers": no_effect("weights are loaded by one process"),
    "use_tqdm_on_load": no_effect(reasons.NO_PROGRESS_BAR),
    "prefix_caching_hash_algo": no_effect("the hash is always collision resistant"),
    "disable_cascade_attn": no_effect("attention does not cascade"),
    "num_scheduler_steps": no_effect("a step produces one token; overlap=True keeps two steps in flight"),
    "num_lookahead_slots": no_effect("drafts use what a step leaves free"),
    "use_v2_block_manager": no_effect("there is one block manager"),
    "calculate_kv_scales": no_effect("a KV cache of 8-bit floats has scales of 1"),
    "guided_decoding_backend": no_effect(reasons.ONE_IMPLEMENTATION),
    "max_loras": no_effect("the rows of a step may have any number of adapters"),
    "max_lora_rank": no_effect("adapters may have any rank up to 4,096"),
    "served_model_name": no_effect("a name matters to a server alone"),
    # -- refused beside the values that change nothing
    "enable_chunked_prefill": refused("prefill is always chunked; batching_policy='prefill_first' is nearest", True),
    "pipeline_parallel_size": refused(_ONE_COPY, 1),
    "data_parallel_size": refused(_ONE_COPY, 1),
    "enable_expert_parallel": refused(_ONE_COPY, False),
    "cpu_offload_gb": refused("weights are not offloaded; use quantization='int8' or a smaller model", 0),
    "tokenizer_revision": refused(reasons.TOKENIZER_FILE),
    "tokenizer_mode": refused(reasons.TOKENIZER_FILE, "auto", "hf", "fast"),
    "skip_tokenizer_init": refused("use SamplingParams(detokenize=False)", False),
    "code_revision": refused("no code of a model's folder runs; leave it out"),
    "load_format": refused(
        "weights are read from safetensors files; model='chairlift:random' has random weights", "auto", "safetensors"
    ),
    "config_format": refused("a model is a Hugging Face folder", "auto", "hf"),
    "download_dir": refused("set HF_HUB_CACHE in the environment"),
    "hf_token": refused("set HF_TOKEN in the environment"),
    "hf_config_path": refused(reasons.CONFIG_FILE),
    "hf_overrides": refused(reasons.CONFIG_FILE, {}),
    "rope_scaling": refused(reasons.CONFIG_FILE, {}),
    "rope_theta": refused(reasons.CONFIG_FILE),
    "generation_config": refused(reasons.GENERATION_FILE, "auto"),
    "override_generation_config": refused("pass SamplingParams with these values", {}),
    "runner": refused(reasons.TEXT_AND_EMBEDDINGS, "auto", "generate"),
    "task": refused(reasons.TEXT_AND_EMBEDDINGS, "auto", "generate"),
    "convert": refused(reasons.TEXT_AND_EMBEDDINGS, "auto", "none"),
    "max_logprobs": refused("at most 20 logprobs are returned for a token", *range(21)),
    "logprobs_mode": refused(reasons.RAW_LOGPROBS, "raw_logprobs"),
    "logits_processors": refused("use logits_processor_factories={name: 'package.module:factory'}", []),
    "structured_outputs_config": refused(in_names(reasons.GRAMMARS), {}),
    "max_num_partial_prefills": refused(_PARTIAL_PREFILLS, 1),
    "max_long_partial_prefills": refused(_PARTIAL_PREFILLS, 1),
    "disable_sliding_window": refused("a sliding window is part of the model; set max_model_len", False),
    "enable_sleep_mode": refused("close() the LLM and make it again", False),
    "speculative_model": refused(_SPECULATION),
    "num_speculative_tokens": refused(_SPECULATION),
    "limit_mm_per_prompt": refused(reasons.TEXT_ONLY, {}),
    "mm_processor_kwargs": refused(reasons.TEXT_ONLY),
    "allowed_local_media_path": refused(reasons.TEXT_ONLY, ""),
    "kv_transfer_config": refused(reasons.ONE_CACHE),
    "kv_events_config": refused(reasons.ONE_CACHE),
    "worker_cls": refused(reasons.ONE_WORKER, "auto"),
    "additional_config": refused(reasons.NO_PLUGIN, {}),
}
"""Options of vLLM's LLM and EngineArgs that have another name here, no effect, or no equivalent."""

_DEFAULT_IF_NONE = frozenset({"quantization", "enable_prefix_caching", "block_size", "attention_backend"})
"""Options of both for which vLLM takes None as the default."""

_VALUES: Mapping[str, Mapping[Any, str]] = {
    "scheduling_policy": {"fcfs": "fifo"},
    "enforce_eager": {True: "off", False: "auto"},
    "use_cuda_graph": {True: "on", False: "off"},
}
"""By the name that was given: values of others, and what they are here."""


def resolve_options(model: str | Path | None, options: Mapping[str, Any]) -> Options:
    """Return our own options for keyword arguments of LLM and AsyncLLM, vLLM's names included.

    An option without effect is logged with the reason. Raises ConfigError for an option that is refused, UnknownOption
    (a TypeError) for an unknown one; the message names the nearest option.
    """
    resolved: dict[str, Any] = {}
    given: dict[str, str] = {}
    for name, value in options.items():
        known = VLLM_OPTIONS.get(name)
        if name in Options.__annotations__:
            setting = name
        elif known is None:
            raise _unknown(name)
        elif known.effect is OptionEffect.ALIAS:
            setting = known.setting
        else:
            _check_harmless(name, value, known, model, options)
            continue
        if value is None and (name in VLLM_OPTIONS or name in _DEFAULT_IF_NONE):
            continue
        if name == "tokenizer" and value == model:  # the model's own, at its own revision
            continue
        if setting in given:
            raise ConfigError(f"{name} and {given[setting]} are the same option; pass one of them", option=name)
        given[setting] = name
        resolved[setting] = _value(name, value)
    return cast("Options", resolved)


def _check_harmless(
    name: str, value: Any, known: ForeignOption, model: str | Path | None, options: Mapping[str, Any]
) -> None:  # fmt: skip
    """Raise ConfigError for a value that would change something; log one that has no effect."""
    same = {"tokenizer_revision": options.get("revision"), "code_revision": options.get("revision")}
    if known.effect is OptionEffect.NONE:
        log.info("%s has no effect: %s", name, known.reason)
    elif value is not None and value not in known.neutral and (same.get(name) is None or value != same[name]):
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
        raise ConfigError(f"{name}={shown} is not supported: {known.reason}", option=name)


def _unknown(name: str) -> UnknownOption:
    names = sorted({*Options.__annotations__, *VLLM_OPTIONS})
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"available are {', '.join(Options.__annotations__)}"
    return UnknownOption(f"unknown option {name!r}; {hint}", option=name)


def _value(name: str, value: Any) -> Any:
    """Return the value of an option as we write it; a torch.dtype or torch.device becomes its name."""
    if name in ("dtype", "device") and type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    if name == "max_model_len" and (value == -1 or str(value).lower() == AUTO_LENGTH):
        return AUTO_LENGTH
    return _VALUES.get(name, {}).get(value, value) if isinstance(value, str | bool) else value
