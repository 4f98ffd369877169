"""FOREIGN_FLAGS: every known flag of vLLM, SGLang, llama.cpp and Ollama, and find_foreign_flag.

The parser, `serve --help` and docs/flags.md follow from this table.
"""

from chairlift.cli.settings.foreign_flag import (
    LLAMA_CPP,
    OLLAMA,
    SGLANG,
    VLLM,
    ForeignFlag,
    alias,
    no_effect,
    only,
    rejected,
    switch,
)
from chairlift.cli.settings.foreign_value_parsers import (
    EntryOfObject,
    RenamedValues,
    context_size,
    json_list,
    share_of_memory,
    thread_count,
)
from chairlift.cli.settings.value_parsers import integer, num_tokens
from chairlift.core import foreign_options as reasons
from chairlift.core.foreign_options import in_flags

LOG_LEVELS = RenamedValues((
    ("critical", "error"), ("error", "error"), ("warning", "warning"), ("info", "info"), ("debug", "debug"),
    ("trace", "debug"),
))  # fmt: skip
SCHEDULE_POLICIES = RenamedValues((("fcfs", "fifo"), ("lpm", "cache_aware")))
REASONING_FORMATS = RenamedValues((("auto", "auto"), ("deepseek", "auto"), ("none", "none")))
SGLANG_METHODS = EntryOfObject("method", RenamedValues((("NGRAM", "ngram"), ("STANDALONE", "draft_model"))))
LLAMA_CPP_METHODS = EntryOfObject("method", RenamedValues((
    ("none", "none"), ("ngram-simple", "ngram"), ("ngram-map-k", "ngram"), ("ngram-map-k4v", "ngram"),
    ("ngram-mod", "suffix"), ("ngram-cache", "suffix"), ("draft-simple", "draft_model"),
)))  # fmt: skip
NUM_DRAFTS = EntryOfObject("num_speculative_tokens", integer)
SHORTEST_NGRAM = EntryOfObject("prompt_lookup_min", integer)
LONGEST_NGRAM = EntryOfObject("prompt_lookup_max", integer)
DRAFT_MODEL_NAME = EntryOfObject("model", str)
ONE_CHAIN = "the drafts of a sequence are one chain of tokens"
DRAFTS_BY_LOAD = "the number of drafts follows the load and what was confirmed before"
ONE_COPY = in_flags(reasons.ONE_COPY)
GRAPHS = in_flags(reasons.GRAPHS)
SHARE = "it is a share of the memory that weights and a step leave free, not of the whole memory"
IN_REQUESTS = "clients set it in their requests, and generation_config.json of the model has its default"
ALWAYS_ON = "this is always on"

ALIASES = (
    alias("-m --model-path", "model", LLAMA_CPP, SGLANG),
    alias("-hf --hf-repo", "model", LLAMA_CPP),
    alias("-hff", "hf_file", LLAMA_CPP),
    alias("--tokenizer-path", "tokenizer", SGLANG),
    alias("--max-num-seqs", "max_running_requests", VLLM),
    alias("-np --parallel", "max_running_requests", LLAMA_CPP),
    alias("--max-num-batched-tokens", "max_batch_tokens", VLLM, parse=num_tokens),
    alias("-b --batch-size", "max_batch_tokens", LLAMA_CPP),
    alias("--chunked-prefill-size", "max_prefill_tokens", SGLANG),
    alias("--long-prefill-token-threshold", "long_prefill_threshold", VLLM),
    alias("-c --ctx-size", "max_model_len", LLAMA_CPP, parse=context_size,
          text="it is the limit of each request and not divided by the number of parallel requests"),
    alias("--context-length", "max_model_len", SGLANG),
    alias("--gpu-memory-utilization", "max_memory", VLLM, parse=share_of_memory, text=SHARE),
    alias("--mem-fraction-static", "max_memory", SGLANG, parse=share_of_memory, text=SHARE),
    alias("--kv-cache-memory-bytes", "max_memory", VLLM, parse=num_tokens),
    alias("--num-gpu-blocks-override", "num_blocks", VLLM),
    alias("--page-size", "block_size", SGLANG),
    alias("--otlp-traces-endpoint", "otlp_endpoint", VLLM, SGLANG,
          text="traces are sent by HTTP unless --otlp-protocol is grpc"),
    switch("--disable-radix-cache", "enable_prefix_caching", False, SGLANG),
    alias("--schedule-policy", "scheduling_policy", SGLANG, parse=SCHEDULE_POLICIES),
    alias("--max-queued-requests", "max_waiting_requests", SGLANG),
    switch("--async-scheduling", "overlap", True, VLLM),
    switch("--no-async-scheduling", "overlap", False, VLLM),
    switch("--disable-overlap-schedule", "overlap", False, SGLANG),
    alias("--speculative-algorithm", "speculative_config", SGLANG, parse=SGLANG_METHODS),
    alias("--speculative-num-draft-tokens", "speculative_config", SGLANG, parse=NUM_DRAFTS),
    alias("--speculative-draft-model-path", "speculative_config", SGLANG, parse=DRAFT_MODEL_NAME),
    alias("--speculative-ngram-min-match-window-size", "speculative_config", SGLANG, parse=SHORTEST_NGRAM),
    alias("--speculative-ngram-max-match-window-size", "speculative_config", SGLANG, parse=LONGEST_NGRAM),
    alias("--spec-type", "speculative_config", LLAMA_CPP, parse=LLAMA_CPP_METHODS),
    alias("--spec-draft-n-max --draft-max --draft --draft-n", "speculative_config", LLAMA_CPP, parse=NUM_DRAFTS),
    alias("-md --model-draft --draft-model --spec-draft-model -hfd --hf-repo-draft --spec-draft-hf",
          "speculative_config", LLAMA_CPP, parse=DRAFT_MODEL_NAME),
    alias("--lookup-ngram-min", "speculative_config", LLAMA_CPP, parse=SHORTEST_NGRAM),
    switch("--enforce-eager", "use_cuda_graph", "off", VLLM),
    switch("--disable-cuda-graph", "use_cuda_graph", "off", SGLANG),
    switch("--disable-frontend-multiprocessing", "engine_mode", "inline", VLLM),
    alias("--watchdog-timeout", "step_timeout", SGLANG),
    alias("-t --threads", "cpu_threads", LLAMA_CPP, parse=thread_count),
    alias("-tp --tp-size --tp", "tensor_parallel_size", VLLM, SGLANG),
    switch("--enable-deterministic-inference", "deterministic", True, SGLANG),
    alias("-a --alias", "served_model_name", LLAMA_CPP),
    alias("--random-seed", "seed", SGLANG),
    alias("-s", "seed", LLAMA_CPP),
    alias("--ssl-keyfile --ssl-key-file", "tls_key", VLLM, SGLANG, LLAMA_CPP),
    alias("--ssl-certfile --ssl-cert-file", "tls_cert", VLLM, SGLANG, LLAMA_CPP),
    alias("--ssl-ca-certs", "tls_client_ca", VLLM, SGLANG, text="with it every client needs a certificate"),
    alias("--chat-template-file", "chat_template", LLAMA_CPP),
    alias("--chat-template-kwargs", "default_chat_template_kwargs", LLAMA_CPP),
    alias("--reasoning-format", "reasoning_parser", LLAMA_CPP, parse=REASONING_FORMATS),
    alias("--allowed-origins", "cors_origin", VLLM, parse=json_list),
    alias("--uvicorn-log-level", "log_level", VLLM, parse=LOG_LEVELS),
    alias("--log-level-http", "log_level", SGLANG, parse=LOG_LEVELS),
    switch("--enable-log-requests", "log_level", "info", VLLM,
           text="requests are logged at level info, without their prompts"),
    switch("--log-requests", "log_level", "info", SGLANG, text="requests are logged at level info, without prompts"),
    switch("--disable-log-stats", "log_stats_interval", 0, VLLM, text="the metrics at /metrics are always on"),
    alias("-n --predict --n-predict", "max_tokens", LLAMA_CPP),
    alias("--temp", "temperature", LLAMA_CPP),
    alias("--repeat-penalty", "repetition_penalty", LLAMA_CPP),
)  # fmt: skip

WITHOUT_EFFECT = (
    no_effect("--compilation-config -O", GRAPHS, VLLM, takes_value=True),
    no_effect("--max-seq-len-to-capture --cuda-graph-sizes --cudagraph-capture-sizes", GRAPHS, VLLM,
              takes_value=True),
    no_effect("--trust-remote-code", reasons.NO_CODE, VLLM, SGLANG),
    no_effect("--enable-torch-compile", GRAPHS, SGLANG),
    no_effect("--cuda-graph-max-bs", GRAPHS, SGLANG, takes_value=True),
    no_effect("--swap-space", reasons.NO_SWAP, VLLM, takes_value=True),
    no_effect("--preemption-mode", reasons.NO_SWAP, VLLM, takes_value=True),
    no_effect("--enable-chunked-prefill", ALWAYS_ON, VLLM),
    no_effect("--enable-auto-tool-choice --enable-reasoning", ALWAYS_ON, VLLM),
    no_effect("--enable-prompt-tokens-details", ALWAYS_ON, VLLM),
    no_effect("--enable-cache-report --enable-metrics", ALWAYS_ON, SGLANG),
    no_effect("--jinja --metrics -cb --cont-batching", ALWAYS_ON, LLAMA_CPP),
    no_effect("--keepalive", "the model stays loaded", OLLAMA, takes_value=True),
    no_effect("--disable-log-requests --no-enable-log-requests --disable-uvicorn-access-log",
              "requests are logged only with --log-level info or debug", VLLM),
    no_effect("--max-log-len", "prompts are never logged", VLLM, takes_value=True),
    no_effect("--guided-decoding-backend", reasons.ONE_IMPLEMENTATION, VLLM, takes_value=True),
    no_effect("--grammar-backend --sampling-backend", reasons.ONE_IMPLEMENTATION, SGLANG, takes_value=True),
    no_effect("--disable-custom-all-reduce --disable-cascade-attn --use-v2-block-manager --calculate-kv-scales",
              "the engine has no such part", VLLM),
    no_effect("--num-scheduler-steps --num-lookahead-slots --max-parallel-loading-workers --prefix-caching-hash-algo",
              "the engine has no such part", VLLM, takes_value=True),
    no_effect("--use-tqdm-on-load", reasons.NO_PROGRESS_BAR, VLLM),
    no_effect("-fa --flash-attn", "--attention-backend selects the attention", LLAMA_CPP, takes_value=True),
    no_effect("-ub --ubatch-size", "a step is not divided; --max-batch-tokens limits it", LLAMA_CPP, takes_value=True),
    no_effect("--no-mmap --no-webui", "the server has no such part", LLAMA_CPP),
    no_effect("--speculative-num-steps", f"{ONE_CHAIN}; --speculative-num-draft-tokens is its length",
              SGLANG, takes_value=True),
    no_effect("--speculative-ngram-min-bfs-breadth --speculative-ngram-max-bfs-breadth --speculative-ngram-match-type",
              ONE_CHAIN, SGLANG, takes_value=True),
    no_effect("--speculative-ngram-branch-length --speculative-ngram-capacity", "its size is fixed", SGLANG,
              takes_value=True),
    no_effect("--spec-draft-n-min --draft-min --draft-n-min --spec-draft-p-min --draft-p-min", DRAFTS_BY_LOAD,
              LLAMA_CPP, takes_value=True),
    no_effect("--spec-draft-p-split --draft-p-split", ONE_CHAIN, LLAMA_CPP, takes_value=True),
    no_effect("--skip-server-warmup", "the server answers during its warm-up", SGLANG),
)  # fmt: skip

SOME_VALUES = (
    only("--pipeline-parallel-size -pp --pp-size", "1", ONE_COPY, VLLM, SGLANG),
    only("--data-parallel-size -dp --dp-size --dp", "1", ONE_COPY, VLLM, SGLANG),
    only("--nnodes", "1", ONE_COPY, SGLANG),
    only("--node-rank", "0", ONE_COPY, SGLANG),
    only("--api-server-count", "1", "one process serves the API; start more servers instead", VLLM),
    only("--distributed-executor-backend", "mp uni", ONE_COPY, VLLM),
    only("--load-format", "auto safetensors", "weights are read from safetensors files; convert others", VLLM, SGLANG),
    only("--generation-config", "auto", reasons.GENERATION_FILE, VLLM),
    only("--cpu-offload-gb", "0", "weights are not divided between devices; choose a smaller model or --dtype", VLLM,
         SGLANG),
    only("-ngl --gpu-layers --n-gpu-layers", "0",
         "layers are not divided between CPU and GPU; --device cuda runs all of them on the GPU", LLAMA_CPP),
    only("--speculative-eagle-topk", "1", f"{ONE_CHAIN}; leave it out", SGLANG),
    only("--speculative-accept-threshold-single --speculative-accept-threshold-acc", "1 1.0",
         "drafts are confirmed only where the model samples them; leave it out", SGLANG),
    only("--tokenizer-mode", "auto hf fast", reasons.TOKENIZER_FILE, VLLM, SGLANG),
    only("--task --runner", "auto generate", f"{reasons.TEXT_AND_EMBEDDINGS}; leave it out", VLLM),
    only("--convert", "auto none", f"{reasons.TEXT_AND_EMBEDDINGS}; leave it out", VLLM),
    only("--config-format", "auto hf", "a model is a Hugging Face folder; leave it out", VLLM),
    only("--logprobs-mode", "raw_logprobs", reasons.RAW_LOGPROBS, VLLM),
    only("--max-num-partial-prefills --max-long-partial-prefills", "1",
         in_flags(reasons.PARTIAL_PREFILLS), VLLM),
    only("--max-loras", "1", reasons.NO_ADAPTERS, VLLM),
    only("--max-lora-rank", "16", reasons.NO_ADAPTERS, VLLM),
    only("--worker-cls", "auto", reasons.ONE_WORKER, VLLM),
    only("--response-role", "assistant", "the role of an answer is assistant; leave it out", VLLM),
    only("--max-logprobs", " ".join(map(str, range(21))), "the limit is 20; leave it out", VLLM),
    only("--chat-template-content-format", "auto", "it follows from the template; leave it out", VLLM),
    only("--ssl-cert-reqs", "2", "with --tls-client-ca every client needs a certificate; leave it out", VLLM, SGLANG),
    only("--stream-interval", "1", "each token is sent when it is there; leave it out", VLLM, SGLANG),
    only("--reasoning-budget", "-1", "--default-chat-template-kwargs sets what the template reads, as enable_thinking",
         LLAMA_CPP),
    only("--allowed-methods --allowed-headers", '["*"]',
         "web pages of --cors-origin may use every method and header; leave it out", VLLM),
)  # fmt: skip

REJECTED = (
    rejected("--middleware", "no code of others runs in the server; put a proxy before it", VLLM),
    rejected("--tool-parser-plugin --reasoning-parser-plugin",
             "no code of others runs in the server; name a format by --tool-call-parser or --reasoning-parser", VLLM),
    rejected("--logits-processors", "name factories by --logits-processor-factories NAME=MODULE:FUNCTION", VLLM),
    rejected("--tokenizer-revision", reasons.TOKENIZER_FILE, VLLM, SGLANG),
    rejected("--skip-tokenizer-init", "a model folder without tokenizer.json takes token ids", VLLM, SGLANG),
    rejected("--hf-overrides --rope-scaling --rope-theta", reasons.CONFIG_FILE, VLLM),
    rejected("--json-model-override-args", reasons.CONFIG_FILE, SGLANG),
    rejected("--hf-token", "a flag is visible in the list of processes; set the variable HF_TOKEN", VLLM),
    rejected("--hf-config-path --code-revision", reasons.CONFIG_FILE, VLLM),
    rejected("--download-dir", "set the variable HF_HOME to the folder of the hub's cache", VLLM, SGLANG),
    rejected("--no-enable-chunked-prefill", "prompts are always computed in chunks; set --max-prefill-tokens", VLLM),
    rejected("--override-generation-config", IN_REQUESTS, VLLM),
    rejected("--speculative-model --num-speculative-tokens", in_flags(reasons.SPECULATION), VLLM),
    rejected("-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
             "no file of n-grams is read; --spec-type ngram-cache learns from outputs", LLAMA_CPP),
    rejected("--enable-lora --lora-modules", reasons.NO_ADAPTERS, VLLM),
    rejected("--lora-paths", reasons.NO_ADAPTERS, SGLANG),
    rejected("--lora --lora-scaled", reasons.NO_ADAPTERS, LLAMA_CPP),
    rejected("--limit-mm-per-prompt --mm-processor-kwargs --allowed-local-media-path", reasons.TEXT_ONLY, VLLM),
    rejected("--mmproj", reasons.TEXT_ONLY, LLAMA_CPP),
    rejected("--is-embedding", reasons.TEXT_AND_EMBEDDINGS, SGLANG),
    rejected("--embedding --embeddings --reranking", reasons.TEXT_AND_EMBEDDINGS, LLAMA_CPP),
    rejected("--enable-expert-parallel --headless", ONE_COPY, VLLM),
    rejected("--dist-init-addr", ONE_COPY, SGLANG),
    rejected("--kv-transfer-config --kv-events-config", reasons.ONE_CACHE, VLLM),
    rejected("--root-path", "routes begin at /; let the proxy take its prefix away", VLLM),
    rejected("--uds", "the server listens on TCP; set --host and --port", VLLM),
    rejected("--structured-outputs-config", in_flags(reasons.GRAMMARS), VLLM),
    rejected("--enable-sleep-mode", "stop the server and start it again", VLLM),
    rejected("--additional-config", reasons.NO_PLUGIN, VLLM),
    rejected("--allow-credentials", "API keys are sent in a header, not in cookies; leave it out", VLLM),
    rejected("--disable-fastapi-docs", "/docs is always served; block it in a proxy", VLLM),
    rejected("--log-config-file", "set --log-level, --log-format and --log-file", VLLM),
    rejected("--disable-sliding-window", reasons.CONFIG_FILE, VLLM),
    rejected("--return-tokens-as-token-ids", "clients set return_token_ids in their requests", VLLM),
    rejected("--max-total-tokens", "set --num-blocks, which is this number divided by --block-size", SGLANG),
    rejected("--allow-auto-truncate", "a prompt that is too long is an error; clients shorten it", SGLANG),
    rejected("--api-key-file", "keys are stored as hashes in --key-file; `chairlift key` creates them", LLAMA_CPP),
    rejected("-ctk --cache-type-k -ctv --cache-type-v", "set --kv-cache-dtype, for keys and values together",
             LLAMA_CPP),
    rejected("-to --timeout", "set --body-timeout and --write-timeout", LLAMA_CPP),
    rejected("-nocb --no-cont-batching", "requests always share steps; set --batching-policy static", LLAMA_CPP),
    rejected("--slots", "/admin/state has the running requests", LLAMA_CPP),
    rejected("--mlock --numa", "the operating system decides; use systemd or numactl", LLAMA_CPP),
    rejected("-tb --threads-batch", "one number of threads is for all steps; set --cpu-threads", LLAMA_CPP),
    rejected("-n --predict --n-predict", IN_REQUESTS, LLAMA_CPP),
    rejected("--temp --repeat-penalty", IN_REQUESTS, LLAMA_CPP),
    rejected("--top-k --top-p --min-p --temperature --max-tokens", IN_REQUESTS, LLAMA_CPP, OLLAMA),
)  # fmt: skip

SAME_NAMES = (
    "--api-key", "--attention-backend", "--block-size", "--chat-template", "--config",
    "--default-chat-template-kwargs", "--device", "--dtype", "--enable-prefix-caching", "--host", "--kv-cache-dtype",
    "--log-file", "--log-level", "--max-model-len", "--max-prefill-tokens", "--max-running-requests", "--model",
    "--no-enable-prefix-caching", "--port", "--quantization", "--reasoning-parser", "--revision",
    "--scheduling-policy", "--seed", "--served-model-name", "--speculative-config", "--tool-call-parser",
)  # fmt: skip
"""Flags of `serve` that other servers have under the same name."""

FOREIGN_FLAGS: tuple[ForeignFlag, ...] = (*ALIASES, *WITHOUT_EFFECT, *SOME_VALUES, *REJECTED)
"""A command has the first row of a flag whose setting it has, and the rejected rows of flags that it does not have."""


def find_foreign_flag(key: str) -> ForeignFlag | None:
    """Return the alias whose flag has this key of a settings file: max_num_seqs; None for another key."""
    return next((row for row in ALIASES if any(flag == "--" + key.replace("_", "-") for flag in row.flags)), None)
