"""VLLM_OPTIONS: vLLM's constructor options and what each means here; resolve_options() applies the table."""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from chairlift.core.errors import ConfigError, UnknownOption
from chairlift.llm.options import Options

log = logging.getLogger(__name__)

ANY: tuple[Any, ...] = (object,)
"""Of VllmOption.harmless: every value is accepted without effect."""


@dataclass(frozen=True, slots=True)
class VllmOption:
    """What an option of vLLM means here: another name of a setting, without effect, or refused.

    Attributes:
        setting: our option with the same meaning; "" for none.
        harmless: values accepted without effect, beside None; ANY for every value. Others are refused.
        reason: why it has no effect or is refused, and the nearest setting.
    """

    setting: str = ""
    harmless: tuple[Any, ...] = ()
    reason: str = ""


def _alias(setting: str, reason: str = "") -> VllmOption:
    return VllmOption(setting=setting, reason=reason)


def _no_effect(reason: str) -> VllmOption:
    return VllmOption(harmless=ANY, reason=reason)


def _refused(reason: str, *harmless: Any) -> VllmOption:
    return VllmOption(harmless=harmless, reason=reason)


_ONE_COPY = "a server runs one copy of a model on one machine; set tensor_parallel_size, or start more servers"
_NO_LORA = "LoRA adapters are not supported; merge the adapter into the model's weights"
_TEXT_ONLY = "models with images, audio or video are not supported"
_NOT_COMPILED = "use_cuda_graph decides about graphs, and nothing else is compiled"
_NO_SPECULATION = "speculative decoding is not supported; leave it out"
_ONE_FOLDER = "the tokenizer is the one in the model's folder; put tokenizer.json there"

VLLM_OPTIONS: Mapping[str, VllmOption] = {
    # -- the same under another name
    "max_num_seqs": _alias("max_running_requests"),
    "max_num_batched_tokens": _alias("max_batch_tokens"),
    "gpu_memory_utilization": _alias("max_memory", "a share of the memory that is free, for the KV cache alone"),
    "kv_cache_memory_bytes": _alias("max_memory", "bytes"),
    "num_gpu_blocks_override": _alias("num_blocks"),
    "long_prefill_token_threshold": _alias("long_prefill_threshold"),
    "async_scheduling": _alias("overlap"),
    "enforce_eager": _alias("use_cuda_graph"),
    # -- accepted without effect
    "compilation_config": _no_effect(_NOT_COMPILED),
    "max_seq_len_to_capture": _no_effect(_NOT_COMPILED),
    "cudagraph_capture_sizes": _no_effect(_NOT_COMPILED),
    "cuda_graph_sizes": _no_effect(_NOT_COMPILED),
    "swap_space": _no_effect("nothing is swapped; preempted requests are computed again"),
    "preemption_mode": _no_effect("nothing is swapped; preempted requests are computed again"),
    "trust_remote_code": _no_effect("no code of a model's folder runs; unsupported architectures raise ModelError"),
    "disable_log_stats": _no_effect("LLM and AsyncLLM log no statistics; call load() and scheduler_state()"),
    "disable_log_requests": _no_effect("requests are not logged"),
    "enable_log_requests": _no_effect("requests are not logged"),
    "otlp_traces_endpoint": _no_effect("LLM and AsyncLLM send no traces; `chairlift serve --otlp-endpoint` does"),
    "disable_custom_all_reduce": _no_effect(_ONE_COPY),
    "distributed_executor_backend": _refused(_ONE_COPY, "mp", "uni"),
    "max_parallel_loading_workers": _no_effect("weights are loaded by one process"),
    "use_tqdm_on_load": _no_effect("loading shows no progress bar"),
    "prefix_caching_hash_algo": _no_effect("the hash is always collision resistant"),
    "disable_cascade_attn": _no_effect("attention does not cascade"),
    "num_scheduler_steps": _no_effect("a step produces one token; overlap=True keeps two steps in flight"),
    "num_lookahead_slots": _no_effect(_NO_SPECULATION),
    "use_v2_block_manager": _no_effect("there is one block manager"),
    "calculate_kv_scales": _no_effect("a KV cache of 8-bit floats has scales of 1"),
    "guided_decoding_backend": _no_effect("llguidance compiles every grammar"),
    "served_model_name": _no_effect("a name matters to a server alone"),
    # -- refused beside the values that change nothing
    "enable_chunked_prefill": _refused("prefill is always chunked; batching_policy='prefill_first' is nearest", True),
    "pipeline_parallel_size": _refused(_ONE_COPY, 1),
    "data_parallel_size": _refused(_ONE_COPY, 1),
    "enable_expert_parallel": _refused(_ONE_COPY, False),
    "cpu_offload_gb": _refused("weights are not offloaded; use quantization='int8' or a smaller model", 0),
    "tokenizer": _refused(_ONE_FOLDER),
    "tokenizer_revision": _refused(_ONE_FOLDER),
    "tokenizer_mode": _refused("tokenizer.json is read by the tokenizers library", "auto", "hf", "fast"),
    "skip_tokenizer_init": _refused("use SamplingParams(detokenize=False)", False),
    "code_revision": _refused("no code of a model's folder runs; leave it out"),
    "load_format": _refused(
        "weights are read from safetensors files; model='chairlift:random' has random weights", "auto", "safetensors"
    ),
    "config_format": _refused("a model is a Hugging Face folder", "auto", "hf"),
    "download_dir": _refused("set HF_HUB_CACHE in the environment"),
    "hf_token": _refused("set HF_TOKEN in the environment"),
    "hf_config_path": _refused("config.json is the one in the model's folder"),
    "hf_overrides": _refused("change config.json in the model's folder", {}),
    "rope_scaling": _refused("change config.json in the model's folder", {}),
    "rope_theta": _refused("change config.json in the model's folder"),
    "generation_config": _refused("generation_config.json of the model's folder is read", "auto"),
    "override_generation_config": _refused("pass SamplingParams with these values", {}),
    "runner": _refused(
        "every model generates text and makes embeddings; classification is not supported", "auto", "generate"
    ),
    "task": _refused(
        "every model generates text and makes embeddings; classification is not supported", "auto", "generate"
    ),
    "convert": _refused(
        "every model generates text and makes embeddings; classification is not supported", "auto", "none"
    ),
    "max_logprobs": _refused("at most 20 logprobs are returned for a token", *range(21)),
    "logprobs_mode": _refused("logprobs are those of the raw logits", "raw_logprobs"),
    "logits_processors": _refused("use logits_processor_factories={name: 'package.module:factory'}", []),
    "structured_outputs_config": _refused("llguidance compiles every grammar; see reasoning_parser", {}),
    "max_num_partial_prefills": _refused("use long_prefill_threshold and max_chunk_tokens", 1),
    "max_long_partial_prefills": _refused("use long_prefill_threshold and max_chunk_tokens", 1),
    "disable_sliding_window": _refused("a sliding window is part of the model; set max_model_len", False),
    "enable_sleep_mode": _refused("close() the LLM and make it again", False),
    "enable_lora": _refused(_NO_LORA, False),
    "max_loras": _refused(_NO_LORA, 1),
    "max_lora_rank": _refused(_NO_LORA, 16),
    "speculative_config": _refused(_NO_SPECULATION),
    "speculative_model": _refused(_NO_SPECULATION),
    "num_speculative_tokens": _refused(_NO_SPECULATION),
    "limit_mm_per_prompt": _refused(_TEXT_ONLY, {}),
    "mm_processor_kwargs": _refused(_TEXT_ONLY),
    "allowed_local_media_path": _refused(_TEXT_ONLY, ""),
    "kv_transfer_config": _refused("the KV cache stays in its process; leave it out"),
    "kv_events_config": _refused("the KV cache stays in its process; leave it out"),
    "worker_cls": _refused("there is one worker; leave it out", "auto"),
    "additional_config": _refused("no plugin reads it; leave it out", {}),
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
        elif known.setting:
            setting = known.setting
        else:
            _check_harmless(name, value, known, model, options)
            continue
        if value is None and (name in VLLM_OPTIONS or name in _DEFAULT_IF_NONE):
            continue
        if setting in given:
            raise ConfigError(f"{name} and {given[setting]} are the same option; pass one of them", option=name)
        given[setting] = name
        resolved[setting] = _value(name, value)
    return cast("Options", resolved)


def _check_harmless(
    name: str, value: Any, known: VllmOption, model: str | Path | None, options: Mapping[str, Any]
) -> None:  # fmt: skip
    """Raise ConfigError for a value that would change something; log one that has no effect."""
    same = {"tokenizer": model, "tokenizer_revision": options.get("revision"), "code_revision": options.get("revision")}
    if known.harmless is ANY:
        log.info("%s has no effect: %s", name, known.reason)
    elif value is not None and value not in known.harmless and (same.get(name) is None or value != same[name]):
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
    return _VALUES.get(name, {}).get(value, value) if isinstance(value, str | bool) else value
