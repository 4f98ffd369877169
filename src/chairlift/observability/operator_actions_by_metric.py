"""ACTIONS: what an operator does when a metric's value is bad; the field `action` of each entry in METRICS.

A metric without an entry describes the load or a state, and no value of it is bad by itself.
"""

from collections.abc import Mapping

_OVERLOAD = "Add replicas, or shorten the work: fewer prompt tokens, a lower max_tokens."
_SLOW = "Compare it with the queue time: if requests wait, add replicas; if steps are long, lower --max-batch-tokens."
_REPLICA = "Read the replica's log and its /readyz; restart it, or replace its machine."
_TARGET = "Look which of queue time, prefill and step time has grown; add replicas before the target is lost."
_CACHE = "Add replicas, raise --max-memory, or lower --max-running-requests and the length of prompts."
_SOURCE = "Check that the registry or the file answers, and the router's rights to read it; the last list stays in use."

ACTIONS: Mapping[str, str] = {
    # requests, from the client's view
    "http_requests": "Statuses of 500 and more: read the log lines of these requests. 429: see requests_rejected.",
    "requests_finished": "Outcomes that are error codes: look the code up in errors.md, and read the log.",
    "requests_rejected": "overloaded, queue_full: add replicas. rate_limited: the tenant is above its limits.",
    "requests_aborted": "client: look whether clients have a shorter timeout than the latency. server: see drains.",
    "requests_open": "A number that only grows: requests hang; see steps and /admin/state.",
    "admission_waiting_requests": _OVERLOAD,
    "admission_waiting_tokens": _OVERLOAD,
    "request_queue_time_seconds": _OVERLOAD,
    "time_to_first_token_seconds": _SLOW,
    "inter_token_latency_seconds": "Set --target-itl-ms, lower --max-running-requests, or add replicas.",
    "e2e_request_latency_seconds": _SLOW,
    # by model and tenant
    "slo_requests": _TARGET,
    "tenant_requests": "429: raise the tenant's limits or ask it to send less. 401, 403: its key is wrong.",
    "tenant_slo_requests": "If one tenant alone misses it, its prompts are long; else see slo_requests.",
    # the engine's steps
    "steps": "A rate of 0 while sequences run: the engine hangs; see /admin/state, then restart the replica.",
    "step_seconds": "schedule, commit: the CPU is busy with other work. launch, collect: lower --max-batch-tokens.",
    "step_token_budget_ratio": "Always near 1 while requests wait: the engine is full; add replicas.",
    "sequences_waiting": _OVERLOAD,
    "kv_cache_usage_ratio": _CACHE,
    "kv_cache_free_bytes": _CACHE,
    "engine_limit_changes": "Many changes: give the limits fixed values instead of --tune-limits.",
    "prefix_cache_hit_ratio": "Low with shared prompts: use the router's policy prefix, and put what varies last.",
    "state_checkpoint_evictions": "As many as saves while hits are few: raise --max-memory, or add replicas.",
    "preemptions": _CACHE,
    "spec_decode_num_accepted_tokens": "Few of the drafts: lower num_speculative_tokens of --speculative-config.",
    "out_of_memory_steps": "Lower --max-batch-tokens, --max-running-requests or --max-memory; end other programs.",
    # the router's replicas
    "router_replicas": "ejected, unhealthy: read `chairlift top` and the replica's log. All pending: see discovery.",
    "router_replica_open_requests": "One replica far above the others: check its weight and its latency.",
    "router_replica_transitions": "Many changes: a replica is overloaded or restarts; read its log.",
    "router_replica_restarts": "Read the log of the replica from before its end; look for out of memory.",
    "router_ejections": "Read the reason: faults are in the replica's log, latencies come from a slow machine.",
    "router_ejections_suppressed": "Half of the replicas fail at once: look at what they share, as network or storage.",
    "router_panic_picks": "No replica is healthy: treat it as an outage; see router_replicas.",
    "router_probes": _REPLICA,
    "router_notifications": "failed, dropped: check that --notify-url answers with a status below 300 within seconds.",
    "router_attempts": "fault: see router_ejections; clients notice nothing while another replica takes over.",
    "router_request_attempts": "More than one attempt for many requests: replicas fail; see router_attempts.",
    "router_held_requests": "No replica is ready: see router_replicas and the autoscaler.",
    "router_source_up": _SOURCE,
    "router_source_replicas": _SOURCE,
    "router_source_failures": _SOURCE,
    "router_shared_state_up": "Check Redis and its password file; limits hold for each router alone until then.",
    "router_shared_state_outages": "Check Redis and the network between it and the routers.",
    # the autoscaler
    "autoscaler_target_replicas": "At --max-replicas while requests wait: raise the bound or the budget.",
    "autoscaler_current_replicas": "Below the target for minutes: replicas do not start; see autoscaler_failures.",
    "autoscaler_replicas": "starting for long: read the log of the replica that starts; look at free GPUs and memory.",
    "autoscaler_failures": "apply: the cluster refuses or is down. sample: replicas or Prometheus do not answer.",
    "autoscaler_data_missing": "See which replica's /load or which query does not answer; the pool does not shrink.",
    "autoscaler_held_requests": "The first replica does not start: see autoscaler_failures and its log.",
    "autoscaler_cost_per_hour": "Set --max-cost-per-hour, or lower --max-replicas.",
    "autoscaler_cold_start_seconds": "Keep models on local disks, use --packed-weights-dir, or raise --min-replicas.",
    # processes
    "ready": "Read /readyz, which says why; then the log of the start.",
    "engine_restarts": "Read the log before the restart: out of memory and driver errors are the usual reasons.",
    "process_memory_bytes": "Growth without load: write a bug report with /admin/state. Else lower --max-memory.",
    "process_open_files": "Near `ulimit -n`: raise the limit, and look for clients that leave connections open.",
    "cpu_usage_ratio": "Near 1: the CPUs are the limit; add replicas, or give each its own CPUs (--replica-cpus).",
    "memory_usage_ratio": "Near 1: lower --max-memory; the system ends a process when none is left.",
    "host_memory_usage_ratio": "Near 1: end other programs, lower --max-memory, or give the container a higher limit.",
    "engine_gpu_memory_bytes": "Reserved far above tensors: steps of many sizes leave gaps; lower --max-batch-tokens.",
    "gpu_memory_used_bytes": "Near the total: another program uses the GPU, or lower --max-memory.",
    "tls_certificate_expiry_timestamp_seconds": "Renew the certificate, and send the server SIGHUP: it reads it again.",
}
