"""REPLICA: the dashboard of replicas: requests, engine, KV cache, processes, machine, GPU."""

from grafana_dashboards.dashboard_classes_and_promql import (
    Dashboard,
    Panel,
    Query,
    Row,
    Variable,
    histogram_quantiles,
    sum_rate,
)

HERE = 'instance=~"$replica"'
REPLICAS = f'{HERE},job="chairlift-replica"'


def _rate(metric: str, by: str = "", more: str = "") -> str:
    return sum_rate(metric, by or "instance", REPLICAS + more)


def _mean(metric: str, by: str = "instance") -> str:
    return f"{_rate(f'{metric}_sum', by)} / {_rate(f'{metric}_count', by)}"


def _each(metric: str, more: str = "") -> str:
    return f"{metric}{{{REPLICAS}{more}}}"


REQUESTS = Row("Requests", (
    Panel("Requests by result", "reqps", (
        Query(_rate("chairlift_model_requests_total", "model, result", ',model=~"$model"'), "{{model}} {{result}}"),
    ), "server_error: read the log. rejected: a queue or a tenant's limit is full."),
    Panel("Responses by status", "reqps", (
        Query(_rate("chairlift_http_requests_total", "status", ',route=~"/v1/.+"'), "{{status}}"),
    )),
    Panel("Open and waiting requests", "short", (
        Query(_each("chairlift_requests_open"), "{{instance}} open"),
        Query(_each("chairlift_admission_waiting_requests"), "{{instance}} waiting"),
    )),
    Panel("Time to the first token", "s", histogram_quantiles("chairlift_time_to_first_token_seconds", REPLICAS)),
    Panel("Inter-token latency", "s", histogram_quantiles("chairlift_inter_token_latency_seconds", REPLICAS)),
    Panel("Time to the end of the response", "s",
          histogram_quantiles("chairlift_e2e_request_latency_seconds", REPLICAS)),
    Panel("Wait in the engine's queue", "s", histogram_quantiles("chairlift_request_queue_time_seconds", REPLICAS),
          "Long waits: add replicas."),
    Panel("Prompt and output tokens of a request", "short", (
        Query(_mean("chairlift_request_prompt_tokens"), "{{instance}} prompt"),
        Query(_mean("chairlift_request_output_tokens"), "{{instance}} output"),
    )),
    Panel("Rejected requests by code", "reqps", (
        Query(_rate("chairlift_requests_rejected_total", "code"), "{{code}}"),
    )),
))  # fmt: skip

ENGINE = Row("Engine", (
    Panel("Sequences", "short", (
        Query(_each("chairlift_sequences_running"), "{{instance}} running"),
        Query(_each("chairlift_sequences_waiting"), "{{instance}} waiting"),
    )),
    Panel("Tokens per second", "short", (
        Query(_rate("chairlift_prefill_tokens_total"), "{{instance}} prefill"),
        Query(_rate("chairlift_decode_tokens_total"), "{{instance}} decode"),
        Query(_rate("chairlift_output_tokens_total"), "{{instance}} sent"),
    )),
    Panel("Steps per second", "short", (Query(_rate("chairlift_steps_total"), "{{instance}}"),),
          "0 while sequences run: the engine hangs."),
    Panel("Time of a step by phase", "s", (Query(_mean("chairlift_step_seconds", "phase"), "{{phase}}"),)),
    Panel("Sequences and tokens of a step", "short", (
        Query(_mean("chairlift_step_sequences"), "{{instance}} sequences"),
        Query(_mean("chairlift_step_tokens"), "{{instance}} tokens"),
    )),
    Panel("Use of the token budget", "percentunit", (
        Query(_mean("chairlift_step_token_budget_ratio"), "{{instance}}"),
    ), "Near 100 % while requests wait: the engine is full."),
))  # fmt: skip

CACHE = Row("KV cache", (
    Panel("Blocks that requests hold", "percentunit", (
        Query(_each("chairlift_kv_cache_usage_ratio"), "{{instance}}"),
    ), "Near 100 %: requests are preempted."),
    Panel("Blocks by state", "short", (
        Query(f"sum by (state) ({_each('chairlift_kv_cache_blocks')})", "{{state}}"),
    )),
    Panel("Prompt tokens from the prefix cache", "percentunit", (
        Query(_each("chairlift_prefix_cache_hit_ratio"), "{{instance}}"),
    )),
    Panel("Preemptions", "ops", (Query(_rate("chairlift_preemptions_total"), "{{instance}}"),),
          "Each one is computed again."),
    Panel("Drafts that the model confirmed", "percentunit", (
        Query(f"{_rate('chairlift_spec_decode_num_accepted_tokens_total')} / "
              f"{_rate('chairlift_spec_decode_num_draft_tokens_total')}", "{{instance}}"),
    ), "Share of the guessed tokens; empty where nothing is guessed."),
    Panel("Free bytes of the KV cache", "bytes", (Query(_each("chairlift_kv_cache_free_bytes"), "{{instance}}"),)),
    Panel("Limits of the scheduler", "short", (Query(_each("chairlift_engine_limit"), "{{instance}} {{limit}}"),)),
))  # fmt: skip

PROCESSES = Row("Processes", (
    Panel("CPU", "short", (Query(_rate("chairlift_process_cpu_seconds_total", "process"), "{{process}}"),)),
    Panel("Resident memory", "bytes", (Query(_each("chairlift_process_memory_bytes"), "{{instance}} {{process}}"),)),
    Panel("Open files", "short", (Query(_each("chairlift_process_open_files"), "{{instance}} {{process}}"),)),
    Panel("Ready", "short", (Query(_each("chairlift_ready"), "{{instance}}"),)),
    Panel("Engine restarts in an hour", "short", (
        Query(f"increase({_each('chairlift_engine_restarts_total')}[1h])", "{{instance}}"),
    )),
    Panel("Time until the certificate expires", "s", (
        Query(f"({_each('chairlift_tls_certificate_expiry_timestamp_seconds')} > 0) - time() or "
              f"0 * {_each('chairlift_ready')}", "{{instance}}"),
    ), "0 is a server without TLS."),
))  # fmt: skip

MACHINE = Row("Machine", (
    Panel("Memory in use", "percentunit", (
        Query(_each("chairlift_host_memory_usage_ratio"), "{{instance}} all processes"),
        Query(_each("chairlift_memory_usage_ratio"), "{{instance}} server and engine"),
    )),
    Panel("CPUs in use", "percentunit", (Query(_each("chairlift_cpu_usage_ratio"), "{{instance}}"),)),
))  # fmt: skip

GPU = Row("GPU", (
    Panel("GPU memory", "bytes", (
        Query(_each("chairlift_gpu_memory_used_bytes"), "{{instance}} {{gpu}} used"),
        Query(_each("chairlift_gpu_memory_total_bytes"), "{{instance}} {{gpu}} total"),
        Query(_each("chairlift_engine_gpu_memory_bytes"), "{{instance}} engine {{state}}"),
    )),
    Panel("GPU use", "percentunit", (Query(_each("chairlift_gpu_utilization_ratio"), "{{instance}} {{gpu}}"),)),
), needs="an NVIDIA GPU")  # fmt: skip

REPLICA = Dashboard(
    "replica", "Chairlift: replicas",
    (Variable("replica", "chairlift_steps_total", "instance"),
     Variable("model", "chairlift_model_requests_total", "model")),
    (REQUESTS, ENGINE, CACHE, PROCESSES, MACHINE, GPU),
)  # fmt: skip
