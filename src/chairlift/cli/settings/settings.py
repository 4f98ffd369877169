"""GROUPS, SECTIONS: all settings by group.

This module imports no other package of Chairlift, so that --help is fast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chairlift.cli.settings.bench_settings import LOAD_SETTINGS, SIMULATED_FLEET, WORKLOAD
from chairlift.cli.settings.fleet_settings import AUTOSCALER, AUTOSCALER_SECTIONS, FLEET, FLEET_SECTIONS, SIGNALS
from chairlift.cli.settings.plan_settings import PLAN
from chairlift.cli.settings.router_settings import ROUTER, ROUTER_SECTIONS
from chairlift.cli.settings.sampling_settings import SAMPLING, SAMPLING_SECTIONS
from chairlift.cli.settings.service_settings import ACCESS, LATENCY_TARGETS, PAGE, REGISTRATION, TOKENS, TRACING
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.value_parsers import (
    boolean,
    fraction_or_bytes,
    integer,
    json_object,
    named_factories,
    named_shares,
    num_bytes,
    num_tokens,
    num_tokens_or_auto,
    number,
    one_of,
    scheduling_policy,
)

SECRETS = ("CHAIRLIFT_API_KEY", "CHAIRLIFT_ADMIN_KEY", "CHAIRLIFT_JWT_SECRET")
"""Variables that hold API keys and the secret of tokens. They have no key in a settings file, and their values are
never printed."""

CONFIG = Setting(
    name="config", metavar="FILE.yaml", help="read settings from FILE.yaml; keys are flag names, as in port: 8080"
)
MODEL = Setting(
    name="model", metavar="MODEL", is_positional=True, default_text="the embedded demo model",
    help="Hugging Face model folder, GGUF file, or hub id such as owner/name or owner/name:Q4_K_M",
)  # fmt: skip

Sections = Mapping[str, tuple[Setting, ...]]
"""Settings of a group by the section that they have in --help."""

ENGINE_SECTIONS: Sections = {
    "model": (
        Setting(name="dtype", needs_model=True, default="auto", metavar="DTYPE",
                help="data type: auto (the checkpoint's), float64, float32, bfloat16, float16; or half, bf16, float"),
        Setting(name="device", needs_model=True, default="auto", metavar="DEVICE",
                help="torch device: auto (cuda if there is one, else cpu), cpu, cuda, cuda:1 or another one"),
        Setting(name="revision", needs_model=True, metavar="REVISION", default_text="the hub's main branch",
                help="branch, tag or commit of a hub id"),
        Setting(name="hf_file", needs_model=True, metavar="FILE.gguf", default_text="by the name's type, as :Q8_0",
                help="GGUF file of a hub id that has several"),
        Setting(name="tokenizer", needs_model=True, metavar="MODEL", default_text="the model's own",
                help="folder, GGUF file or hub id whose tokenizer is used instead of the model's own"),
        Setting(name="chat_template", needs_model=True, metavar="FILE", default_text="the model's own",
                help="Jinja file that replaces the model's chat template"),
        Setting(name="default_chat_template_kwargs", needs_model=True, parse=json_object, metavar="JSON",
                default_text="none",
                help="variables of the chat template, as in {\"enable_thinking\": false}; a request's own win"),
        Setting(name="reasoning_parser", needs_model=True, metavar="NAME", default="auto",
                help="how the model marks reasoning: auto (by its chat template), a name as qwen3, or none (it stays)"),
        Setting(name="max_model_len", parse=num_tokens_or_auto, metavar="N", default_text="the model's own limit",
                help="maximum number of tokens of a request, prompt and output together, as 16384, 16k (16000) or "
                     "16K (16384); auto is as many as the KV cache holds, at most the model's own limit"),
        Setting(name="quantization", needs_model=True, default="auto",
                help="weight quantization: auto (that of the file), none (dequantized), int8 or int4 (groups of 32) or "
                     "int8-channel on a CPU, fp8 (e4m3) on a GPU; awq, gptq and gguf are auto for such a file"),
        Setting(name="model_impl", needs_model=True, default="auto", metavar="NAME",
                help="who computes the layers: native (Chairlift), transformers (any decoder), auto"),
        Setting(name="attention_backend", needs_model=True, default="auto", metavar="BACKEND",
                help="attention implementation: auto (triton on CUDA devices), torch, triton, reference, or that of a "
                     "package, where it is installed: flashinfer, fa3"),
        Setting(name="kernels", needs_model=True, default="auto",
                help="kernels on a CPU: auto, native (Chairlift's own), torch"),
        Setting(name="cpu_threads", needs_model=True, parse=integer, metavar="N",
                default_text="one per core, minus one on three or more cores",
                help="number of threads of the native kernels"),
        Setting(name="packed_weights_dir", needs_model=True, metavar="DIR",
                help="keep the native kernels' packed weights in this folder, so that the next start is faster"),
        Setting(name="use_cuda_graph", needs_model=True, default="auto", metavar="MODE",
                help="whether decode steps on a CUDA device are CUDA graphs: on, off, auto (on where it can be)"),
        Setting(name="tensor_parallel_size", needs_model=True, parse=integer, metavar="N", default=1,
                help="number of GPUs, or of processes on a CPU, that share every layer of the model"),
        Setting(name="deterministic", needs_model=True, parse=boolean, default=False,
                help="on NVIDIA GPUs give a request the same tokens in any batch, at a cost; CPU kernels always do"),
        Setting(name="logits_processor_factories", needs_model=True, parse=named_factories,
                metavar="NAME=MODULE:FUNCTION,..", help="register logits processors, which requests select by NAME"),
    ),
    "KV cache": (
        Setting(name="max_memory", needs_model=True, parse=fraction_or_bytes, metavar="X",
                default_text="0.9 on an accelerator; on a CPU 0.25, of which finished prompts keep 512 MiB",
                help="memory for the KV cache: a fraction of the free memory such as 0.8, or a size such as 4GiB "
                "(on each GPU; on a CPU for all parts of --tensor-parallel-size together)"),
        Setting(name="num_blocks", parse=integer, metavar="N", default_text="as many as --max-memory holds",
                help="number of KV cache blocks"),
        Setting(name="block_size", parse=integer, metavar="N", default=16, help="number of tokens in a KV cache block"),
        Setting(name="kv_cache_dtype", needs_model=True, default="auto", metavar="DTYPE",
                help="data type of keys and values: auto (the model's), fp8 (8-bit floats, e4m3; twice the blocks)"),
        Setting(name="enable_prefix_caching", parse=boolean, default=True,
                help="reuse the KV cache blocks of equal prompt prefixes"),
    ),
    "batch and queue": (
        Setting(name="max_running_requests", parse=integer, metavar="N", default=256,
                help="maximum number of requests that run at once"),
        Setting(name="max_queue_size", parse=integer, metavar="N", default=100_000,
                help="maximum number of sequences in the engine's waiting queue; serve has its own default"),
        Setting(name="max_batch_tokens", parse=num_tokens, metavar="N", default=2048,
                help="maximum number of tokens in a step, prefill and decode together"),
        Setting(name="max_prefill_tokens", parse=integer, metavar="N",
                default_text="256 on native kernels, else --max-batch-tokens",
                help="maximum number of prompt tokens in a step"),
        Setting(name="long_prefill_threshold", parse=integer, metavar="N",
                default_text="a quarter of --max-prefill-tokens",
                help="maximum number of prompt tokens of one request in a step while other requests wait for prefill"),
        Setting(name="max_chunk_tokens", parse=integer, metavar="N", default_text="no limit",
                help="maximum number of prompt tokens of one request in a step"),
        Setting(name="target_itl_ms", parse=number, metavar="MS", default_text="no limit",
                help="target inter-token latency in milliseconds; limits the prompt tokens of steps that also decode"),
        Setting(name="tune_limits", parse=boolean, default=False,
                help="let --max-running-requests, --max-batch-tokens and the KV cache blocks in use follow their use"),
        Setting(name="min_running_requests", parse=integer, metavar="N", default=8,
                help="for --tune-limits: lower bound of --max-running-requests"),
        Setting(name="min_batch_tokens", parse=integer, metavar="N", default=256,
                help="for --tune-limits: lower bound of --max-batch-tokens"),
        Setting(name="scheduling_policy", parse=scheduling_policy, default="fifo", metavar="POLICY",
                help="order of the waiting queue: fifo, priority, fair, cache_aware"),
        Setting(name="priority_ageing", parse=number, metavar="SECONDS", default=10,
                help="for --scheduling-policy priority: seconds of waiting that raise a request by one level"),
        Setting(name="tenant_weights", parse=named_shares, metavar="TENANT=WEIGHT,..", default_text="1 each",
                help="for --scheduling-policy fair: weights of the tenants' shares of service"),
        Setting(name="batching_policy", default="mixed", metavar="POLICY",
                help="how a step combines prefill and decode: mixed, fifo, prefill_first, decode_first, static"),
        Setting(name="safety_margin", parse=number, metavar="X", default_text="0.2",
                help="for --batching-policy fifo: fraction of free KV cache blocks below which no request starts"),
        Setting(name="speculative_config", needs_model=True, parse=json_object, metavar="JSON",
                default_text='{"method": "auto"}',
                help="how tokens are guessed ahead, which changes no output: method (auto, ngram, suffix, prediction, "
                     "draft_model, none), num_speculative_tokens, prompt_lookup_min, prompt_lookup_max, "
                     "suffix_max_bytes, model"),
        Setting(name="overlap", parse=boolean, default_text="true on a CUDA device, else false",
                help="schedule the next step while one is computed (two steps in flight)"),
    ),
    "process": (
        Setting(name="engine_mode", needs_model=True, default="inline", metavar="MODE",
                help="where the engine runs: inline (in a thread), process (in its own process)"),
        Setting(name="heartbeat_timeout", needs_model=True, parse=number, metavar="SECONDS", default=30,
                help="seconds without message or activity after which an engine process is replaced"),
        Setting(name="step_timeout", needs_model=True, parse=number, metavar="SECONDS", default=120,
                help="seconds of a step after which an engine process is replaced, without waits for a processor"),
        Setting(name="profile", needs_model=True, metavar="FILE",
                help="write a trace of the engine's steps to FILE, for the Perfetto viewer"),
    ),
}  # fmt: skip
ENGINE = tuple(setting for section in ENGINE_SECTIONS.values() for setting in section)

LOGGING = (
    Setting(name="log_level", parse=one_of("debug", "info", "warning", "error"), metavar="LEVEL", default="warning",
            is_reloadable=True, help="lowest level that is logged: debug, info, warning, error"),
    Setting(name="log_format", parse=one_of("human", "json"), metavar="FORMAT", default="human",
            help="format of log lines: human, json"),
    Setting(name="log_file", metavar="FILE", help="also write the log to FILE"),
    Setting(name="log_file_size", parse=num_bytes, metavar="BYTES", default="50MB",
            help="size at which the log file is rotated; 0 never rotates it"),
    Setting(name="log_backups", parse=integer, metavar="N", default=5, help="number of rotated log files to keep"),
)  # fmt: skip

SERVER_SECTIONS: Sections = {
    "address and access": (
        Setting(name="host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on"),
        Setting(name="port", parse=integer, metavar="N", default=8000,
                help="TCP port to listen on; 0 takes a free one"),
        Setting(name="served_model_name", is_repeatable=True, takes_several=True,
                default_text="the model's own name",
                help="name of the model in the API"),
        Setting(name="key_file", metavar="FILE", help="file of API keys, one TENANT sha256:HEX [admin] per line"),
        Setting(name="insecure", parse=boolean, default=False, help="allow a public --host without API keys"),
        Setting(name="tls_cert", metavar="FILE", help="certificate chain (PEM) for HTTPS; needs --tls-key"),
        Setting(name="tls_key", metavar="FILE", help="private key (PEM) of --tls-cert"),
        Setting(name="cors_origins", is_repeatable=True, metavar="ORIGIN", flag_name="cors_origin",
                help="allow web pages of this origin to use the API; * is any origin"),
        *ACCESS,
    ),
    "web page": PAGE,
    "tokens": TOKENS,
    "registration": REGISTRATION,
    "requests": (
        Setting(name="reject_unknown_fields", parse=boolean, default=False,
                help="reject a request with fields that have no effect, instead of naming them in a response header"),
        Setting(name="tool_call_parser", default_text="found in the chat template",
                help="format of the model's tool calls: hermes, llama3, mistral, ... (or vLLM's name of its parser)"),
        Setting(name="max_body_bytes", parse=num_bytes, metavar="BYTES", default="4MB",
                help="maximum size of a request body"),
        Setting(name="response_store_bytes", parse=num_bytes, metavar="BYTES", default="64MB",
                help="size of the stored responses of /v1/responses, oldest dropped first; 0 stores none"),
        Setting(name="body_timeout", parse=number, metavar="SECONDS", default=30,
                help="seconds in which a request body must arrive"),
        Setting(name="write_timeout", parse=number, metavar="SECONDS", default=30,
                help="seconds in which a client must read what is sent to it"),
        Setting(name="sse_ping_interval", parse=number, metavar="SECONDS", default=5,
                help="seconds of silence after which a stream begins and gets a comment or a ping, and again after "
                "each further silence; 0 is never"),
        Setting(name="idle_timeout", parse=number, metavar="SECONDS", default=30,
                help="seconds after which a connection without a request is closed"),
        Setting(name="drain_timeout", parse=number, metavar="SECONDS", default=30,
                help="seconds within which open requests may finish at shutdown"),
        Setting(name="drain_handover", parse=number, metavar="SECONDS", default=5,
                help="seconds after which a shutdown hands a router's streams over to other replicas"),
    ),
    "files and batches": (
        Setting(name="files_folder", metavar="FOLDER",
                default_text="~/.local/state/chairlift/files-PORT, a temporary one with port 0",
                help="folder of the files and batches of /v1/files and /v1/batches, for this server alone"),
        Setting(name="files_bytes", parse=num_bytes, metavar="BYTES", default="4GB",
                help="maximum size of all files and running batches together, and half of it for each tenant with a "
                     "key; 0 stores none"),
        Setting(name="max_file_bytes", parse=num_bytes, metavar="BYTES", default="200MB",
                help="maximum size of a file that is uploaded to /v1/files"),
        Setting(name="max_batch_requests", parse=integer, metavar="N", default=32,
                help="maximum number of requests of all batches that run at the same time"),
    ),
    "admission": (
        Setting(name="max_waiting_requests", parse=integer, metavar="N", default=1024, is_reloadable=True,
                help="maximum number of requests that wait for their first token; more are rejected with 429"),
        Setting(name="max_waiting_tokens", parse=integer, metavar="N", default=1_000_000, is_reloadable=True,
                help="maximum number of prompt tokens of all waiting requests; more are rejected with 429"),
        Setting(name="max_waiting_bytes", parse=num_bytes, metavar="BYTES", default="256MB", is_reloadable=True,
                help="maximum size of the bodies of all waiting requests together; more are rejected with 429"),
        Setting(name="max_queue_wait", parse=number, metavar="SECONDS", default_text="no limit", is_reloadable=True,
                help="for latency-bound services: seconds of expected wait above which a request is rejected with "
                "429, if 16 or more others wait"),
        Setting(name="tenant_requests_per_minute", parse=number, metavar="N", default_text="no limit",
                is_reloadable=True, help="maximum number of requests that a tenant may start per minute"),
        Setting(name="tenant_tokens_per_minute", parse=number, metavar="N", default_text="no limit",
                is_reloadable=True, help="maximum number of prompt and output tokens that a tenant may use per minute"),
        Setting(name="tenant_max_open_requests", parse=integer, metavar="N", default_text="no limit",
                is_reloadable=True, help="maximum number of open requests of a tenant"),
    ),
    "latency targets": LATENCY_TARGETS,
    "metrics": (
        Setting(name="public_metrics", parse=boolean, default=False, help="serve /metrics without an API key"),
        Setting(name="log_stats_interval", parse=number, metavar="SECONDS", default=10,
                help="seconds between two log lines of tokens/s, queue and cache usage under traffic; 0 is no line"),
        Setting(name="metric_aliases", is_repeatable=True, parse=one_of("vllm", "transformers"), metavar="SYSTEM",
                flag_name="metric_alias", help="also export metrics under this system's names: vllm, transformers"),
    ),
    "traces": TRACING,
}  # fmt: skip
SERVER = tuple(setting for section in SERVER_SECTIONS.values() for setting in section)

ROUTER_SERVER = tuple(
    setting for setting in SERVER
    if setting.name not in ("served_model_name", "reject_unknown_fields", "tool_call_parser", "metric_aliases",
                            "log_stats_interval")
)  # fmt: skip
"""The settings of SERVER that `router` has, too."""

AUTOSCALER_SERVER = (*SERVER_SECTIONS["address and access"], *TOKENS, *LATENCY_TARGETS, *SERVER_SECTIONS["metrics"][:1])
"""The settings of SERVER that `autoscaler` has, too."""

SIMULATE_SETTINGS = tuple(setting for setting in ENGINE if not setting.needs_model)
"""The settings of ENGINE that `bench simulate` has, which runs no model."""

_CHAT_DEFAULTS: Mapping[str, Any] = {
    "max_tokens": {"default": "", "default_text": "as many as the model's context holds"},
    "seed": {"default_text": "a random one"},
}  # fmt: skip
CHAT_SETTINGS = tuple(
    replace(setting, **_CHAT_DEFAULTS.get(setting.name, {})) for setting in SAMPLING
    if setting.name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
                        "presence_penalty", "frequency_penalty", "seed", "stop")
)  # fmt: skip
"""The settings of SAMPLING that `chat` has, with a local model and with a server."""

_SERVE_VARIANTS = {
    "engine_mode": Setting(name="engine_mode", default="process", metavar="MODE",
                           help="where the engine runs: process (in its own process), inline (in a thread)"),
    "max_queue_size": Setting(name="max_queue_size", parse=integer, metavar="N",
                              default_text="128 for each of --max-waiting-requests and --max-running-requests",
                              help="maximum number of sequences in the engine's waiting queue"),
}  # fmt: skip
SERVE_SETTINGS = tuple(_SERVE_VARIANTS.get(setting.name, setting) for setting in ENGINE)
"""The settings of ENGINE with the defaults of `serve`."""

SERVE_SEED = Setting(
    name="seed",
    parse=integer,
    metavar="N",
    default_text="random",
    help="seed of the random seeds of requests that have none, so that a run can be repeated",
)
"""The seed of `serve`; `generate` and a request have their own."""

GROUPS: tuple[tuple[str, Sequence[Setting]], ...] = (
    ("model", (MODEL,)), ("server", SERVER), ("engine", ENGINE), ("sampling", SAMPLING), ("logging", LOGGING),
    ("workload", WORKLOAD), ("load", LOAD_SETTINGS), ("plan", PLAN), ("router", ROUTER), ("fleet", FLEET),
    ("autoscaler", AUTOSCALER), ("signals", SIGNALS), ("simulated fleet", SIMULATED_FLEET),
)  # fmt: skip
"""Every setting that a settings file may have, by group."""

SECTIONS: Mapping[str, Sections] = {
    "server": SERVER_SECTIONS, "engine": ENGINE_SECTIONS, "sampling": SAMPLING_SECTIONS, "router": ROUTER_SECTIONS,
    "fleet": FLEET_SECTIONS, "autoscaler": AUTOSCALER_SECTIONS,
}  # fmt: skip
"""The sections that a group has in --help; the other groups have none."""
