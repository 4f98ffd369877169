"""Telemetry: records requests and engine steps as metrics; no other module of the server touches a metric."""

import math
import os
import resource
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from prometheus_client import CollectorRegistry

from chairlift.core.engine_output import Usage
from chairlift.core.host.resource_monitor import ResourceUsage
from chairlift.core.host.system_files import PROC, read_stat
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request_timeline import Timeline
from chairlift.engine.scheduler_and_cache_state import CacheState
from chairlift.engine.step_stats import StepStats
from chairlift.observability.latency_targets import LatencyTargets
from chairlift.observability.metric_aliases import ALIAS_SETS, AliasCollector
from chairlift.observability.metrics import SERVER_METRICS, Metrics, current_exemplar
from chairlift.observability.request_counters import RequestCounters
from chairlift.web.access_log import AccessRecord
from chairlift.web.admission import AdmissionController
from chairlift.web.middleware import CLIENT_CLOSED_REQUEST
from chairlift.web.outcome_to_request_result import request_result
from chairlift.web.service.event_ring_buffer import EventRingBuffer

MAX_RECORDS = 1000
"""Number of finished requests whose records are kept."""

MAX_RECENT_REQUESTS = 200
"""Number of these that a new watcher of the live data gets."""

LIMITS = ("running_requests", "batch_tokens", "kv_blocks")
"""Labels of the scheduler's limits."""

PAGE_BYTES = resource.getpagesize()
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second of the CPU times in /proc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLatency:
    """How a generation's tokens came, for the latency targets.

    Attributes:
        tenant: tenant of the request.
        has_first_token: whether it had any token.
        generates: whether its response is made of tokens; False for embeddings, which have no such latencies.
        mean_inter_token_seconds: mean time between two tokens; None for fewer than two, and where nothing is streamed.
    """

    tenant: str = ""
    has_first_token: bool = True
    generates: bool = True
    mean_inter_token_seconds: float | None = None


NO_LATENCY = TokenLatency()


class Telemetry:
    """The metrics of one replica, and the records of its last requests.

    Attributes:
        metrics: the metrics page.
        recent_requests: the records of the last requests, with the time of their end.
        num_prefill_tokens: tokens computed in prefill since the start.
        num_output_tokens: tokens sent to clients since the start.
        cache_usage: share of the KV cache blocks that sequences hold, as of the last gauges.
        prefix_hit_ratio: share of prompt tokens taken from the prefix cache since the engine's start.
    """

    def __init__(self, model: str, aliases: tuple[str, ...], targets: LatencyTargets | None = None) -> None:
        self.metrics, self._model = Metrics(SERVER_METRICS), model
        self._counters = RequestCounters(self.metrics, targets or LatencyTargets())
        self._counters.add_model(model)
        self.recent_requests = EventRingBuffer(MAX_RECENT_REQUESTS)
        self._records: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.num_prefill_tokens = self.num_output_tokens = 0
        self.cache_usage = self.prefix_hit_ratio = 0.0
        self._preemptions = 0
        self._out_of_memory_steps = 0
        self._checkpoint_totals = (0, 0, 0)
        self._draft_totals: tuple[int, ...] = (0, 0)
        self._limits: tuple[int, ...] = ()
        self._restarts = 0
        self._cpu: dict[str, tuple[int, float]] = {}
        self._gpu_metrics = frozenset[tuple[str, str]]()
        metrics = self.metrics
        self._inter_token = metrics.histogram("inter_token_latency_seconds")
        self._output_tokens = metrics.counter("output_tokens")
        self._phases = {
            phase: metrics.histogram("step_seconds", phase) for phase in ("schedule", "launch", "collect", "commit")
        }
        for name in aliases:
            registry = CollectorRegistry()
            registry.register(
                AliasCollector(metrics, ALIAS_SETS[name], {"model_name": model} if name == "vllm" else {})
            )
            metrics.more.append(registry)

    # -- requests --------------------------------------------------------------------------------------------------

    def record_response(self, record: AccessRecord) -> None:
        """Count an HTTP response, also as a rejection if it is an error from before any work."""
        status = str(record.status or 0)
        self.metrics.counter("http_requests", record.route or "other", _method(record.method), status).inc()
        self._counters.record_response(
            record.route, record.tenant, record.status, was_submitted=record.was_submitted
        )  # fmt: skip
        if record.code and not record.was_submitted and record.status != CLIENT_CLOSED_REQUEST:
            self.record_rejection(record.code)

    def record_rejection(self, code: str) -> None:
        """Count a request that was rejected."""
        self.metrics.counter("requests_rejected", code).inc()

    def record_rejected_by_engine(self, code: str, tenant: str) -> None:
        """Count a request that the engine rejected before any work; its response counts only for the tenant."""
        self.record_rejection(code)
        self._counters.record_finished(request_result(code), self._model, tenant, 0)

    def record_abort(self, reason: str) -> None:
        """Count a generation that was aborted."""
        self.metrics.counter("requests_aborted", reason).inc()

    def record_first_token(self, seconds: float, tenant: str = "") -> None:
        """Observe the time to the first token of a tenant's request."""
        self.metrics.histogram("time_to_first_token_seconds").observe(seconds, current_exemplar())
        self._counters.record_ttft(seconds, self._model, tenant)

    def record_tokens(self, tokens: int, gap: float | None, exemplar: dict[str, str] | None = None) -> None:
        """Count new tokens of a choice.

        `gap` is the seconds since its last tokens: None for its first tokens, and for a response that is not a stream.
        `exemplar` names the request's trace if it has one.
        """
        self._output_tokens.inc(tokens)
        self.num_output_tokens += tokens
        if gap is not None:
            self._inter_token.observe(gap, exemplar)

    def record_finished(
        self, request_id: str, outcome: str, seconds: float, usage: Usage | None, timeline: Timeline | None,
        latency: TokenLatency = NO_LATENCY, num_used: int = 0,
    ) -> None:  # fmt: skip
        """Record the end of a generation; `num_used` are the tokens that its tenant pays for."""
        metrics = self.metrics
        metrics.counter("requests_finished", outcome).inc()
        exemplar = current_exemplar()
        metrics.histogram("e2e_request_latency_seconds").observe(seconds, exemplar)
        if usage is not None:
            metrics.counter("prompt_tokens").inc(usage.prompt_tokens)
            metrics.counter("prefix_cached_tokens").inc(usage.cached_tokens)
            metrics.histogram("request_prompt_tokens").observe(usage.prompt_tokens)
            if latency.generates:
                metrics.histogram("request_output_tokens").observe(usage.completion_tokens)
        result = request_result(outcome)
        self._counters.record_finished(result, self._model, latency.tenant, num_used)
        if latency.generates and not latency.has_first_token:
            self._counters.record_no_first_token(result, seconds, self._model, latency.tenant)
        if latency.mean_inter_token_seconds is not None:
            self._counters.record_itl(latency.mean_inter_token_seconds, self._model, latency.tenant)
        events = () if timeline is None else timeline.events
        scheduled_at = next((event.at for event in events if event.name == "scheduled"), None)
        if scheduled_at is not None:
            metrics.histogram("request_queue_time_seconds").observe(scheduled_at, exemplar)
        self._records.pop(request_id, None)  # a repeated id replaces its record and becomes the newest
        self._records[request_id] = record = {
            "request_id": request_id, "outcome": outcome, "seconds": round(seconds, 6),
            "events": [list(event) for event in events],
            "wait_seconds": {} if timeline is None else dict(timeline.wait_seconds),
            "usage": None if usage is None else [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens],
        }  # fmt: skip
        self.recent_requests.add({"at_seconds": round(time.time(), 3), **record})
        while len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)

    def record(self, request_id: str) -> dict[str, Any] | None:
        """Return the record of a finished request; None if it is not kept."""
        return self._records.get(request_id)

    def recent_records(self, limit: int) -> list[dict[str, Any]]:
        """Return the records of the requests that finished last, the newest last, `limit` at most."""
        return list(self._records.values())[-limit:]

    # -- the engine ------------------------------------------------------------------------------------------------

    def record_step(self, stats: StepStats, budget: int) -> None:
        """Record a step; called on the engine thread."""
        metrics = self.metrics
        for phase, milliseconds in (
            ("schedule", stats.schedule_ms), ("launch", stats.launch_ms), ("collect", stats.collect_ms),
            ("commit", stats.commit_ms),
        ):  # fmt: skip
            self._phases[phase].observe(milliseconds / 1000)
        self.num_prefill_tokens += stats.num_prefill_tokens
        decoded = stats.num_tokens - stats.num_prefill_tokens
        metrics.counter("steps").inc()
        metrics.counter("prefill_tokens").inc(stats.num_prefill_tokens)
        metrics.counter("decode_tokens").inc(decoded)
        metrics.histogram("step_sequences").observe(stats.num_sequences)
        metrics.histogram("step_tokens").observe(stats.num_tokens)
        metrics.histogram("step_token_budget_ratio").observe(min(1.0, stats.num_tokens / budget))
        metrics.gauge("sequences_running").set(stats.running)
        metrics.gauge("sequences_waiting").set(stats.waiting)
        if stats.num_prefill_tokens and decoded:
            metrics.gauge("decode_prefill_ratio").set(decoded / stats.num_prefill_tokens)
        if stats.preemptions < self._preemptions:  # a restarted engine counts from zero
            self._preemptions = 0
        metrics.counter("preemptions").inc(stats.preemptions - self._preemptions)
        self._preemptions = stats.preemptions
        failures = stats.out_of_memory_steps
        metrics.counter("out_of_memory_steps").inc(max(0, failures - self._out_of_memory_steps))
        self._out_of_memory_steps = failures
        checkpoints = (stats.state_checkpoint_hits, stats.state_checkpoint_saves, stats.state_checkpoint_evictions)
        if checkpoints != self._checkpoint_totals:
            self._record_checkpoints(checkpoints)
        drafts = (stats.drafts, stats.draft_tokens, *stats.confirmed_by_position)
        if drafts != self._draft_totals:
            self._record_drafts(drafts)
        if stats.device_reserved_bytes:
            metrics.gauge("engine_gpu_memory_bytes", "tensors").set(stats.device_tensor_bytes)
            metrics.gauge("engine_gpu_memory_bytes", "reserved").set(stats.device_reserved_bytes)
        limits = (stats.max_running_requests, stats.max_batch_tokens, stats.usable_blocks)
        if limits != self._limits:
            self._record_limits(limits)

    def _record_checkpoints(self, totals: tuple[int, int, int]) -> None:
        """Count the saved states that were loaded, saved and evicted since the last call."""
        before, self._checkpoint_totals = self._checkpoint_totals, totals
        for name, value, old in zip(("hits", "saves", "evictions"), totals, before, strict=True):
            # A restarted engine counts from zero.
            self.metrics.counter(f"state_checkpoint_{name}").inc(value - old if value >= old else value)

    def _record_drafts(self, totals: tuple[int, ...]) -> None:
        """Count the drafts, and those that were confirmed by position, since the last call."""
        before, self._draft_totals = self._draft_totals, totals
        if totals[0] < before[0]:  # a restarted engine counts from zero
            before = ()
        new = zip_longest(totals, before, fillvalue=0)
        num_drafts, num_tokens, *confirmed = (total - old for total, old in new)
        self.metrics.counter("spec_decode_num_drafts").inc(num_drafts)
        self.metrics.counter("spec_decode_num_draft_tokens").inc(num_tokens)
        self.metrics.counter("spec_decode_num_accepted_tokens").inc(sum(confirmed))
        for position, count in enumerate(confirmed):
            if count:
                self.metrics.counter("spec_decode_num_accepted_tokens_per_pos", str(position)).inc(count)

    def _record_limits(self, limits: tuple[int, ...]) -> None:
        """Export the limits of the scheduler, and count those that changed."""
        before, self._limits = self._limits, limits
        for name, value, old in zip(LIMITS, limits, before or limits, strict=True):
            self.metrics.gauge("engine_limit", name).set(value)
            self.metrics.counter("engine_limit_changes", name).inc(value != old)

    def update_gauges(
        self, state: ReplicaState, load: LoadReport, cache: CacheState | None, admission: AdmissionController,
        restarts: int, block_bytes: float,
    ) -> None:  # fmt: skip
        """Set the gauges of state, queues and cache, and count restarts; called at a fixed interval."""
        metrics = self.metrics
        metrics.gauge("ready").set(state is ReplicaState.READY)
        metrics.gauge("requests_open").set(admission.open_requests)
        metrics.gauge("admission_waiting_requests").set(admission.waiting_requests)
        metrics.gauge("admission_waiting_tokens").set(admission.waiting_tokens)
        metrics.gauge("sequences_running").set(load.running_requests)
        metrics.gauge("sequences_waiting").set(load.waiting_requests)
        metrics.counter("engine_restarts").inc(restarts - self._restarts)
        self._restarts = restarts
        if load.prompt_tokens:
            self.prefix_hit_ratio = load.cached_tokens / load.prompt_tokens
            metrics.gauge("prefix_cache_hit_ratio").set(self.prefix_hit_ratio)
        if cache is None:
            return
        allocated, total = cache["allocated_blocks"], cache["total_blocks"]
        for name, blocks in (("used", allocated), ("cached", cache["cached_blocks"]), ("free", cache["free_blocks"])):
            metrics.gauge("kv_cache_blocks", name).set(blocks)
        if (states := cache.get("state_checkpoints")) is not None:
            for name, count in (("used", states["held"]), ("cached", states["cached"]), ("free", states["free"])):
                metrics.gauge("state_checkpoints", name).set(count)
        self.cache_usage = allocated / total if total else 0.0
        metrics.gauge("kv_cache_usage_ratio").set(self.cache_usage)
        metrics.gauge("kv_cache_bytes").set(total * block_bytes)
        metrics.gauge("kv_cache_free_bytes").set((total - allocated) * block_bytes)

    def record_certificate_expiry(self, timestamp: float) -> None:
        """Publish when the server's own certificate expires."""
        self.metrics.gauge("tls_certificate_expiry_timestamp_seconds").set(timestamp)

    def record_processes(self, pids: dict[str, int]) -> None:
        """Record CPU time, memory and open files of processes."""
        for name, pid in pids.items():
            usage = _process(pid)
            if usage is None:
                continue
            cpu, memory, open_files = usage
            last_pid, last_cpu = self._cpu.get(name, (pid, 0.0))
            self.metrics.counter("process_cpu_seconds", name).inc(max(0.0, cpu - last_cpu) if last_pid == pid else cpu)
            self._cpu[name] = pid, cpu
            self.metrics.gauge("process_memory_bytes", name).set(memory)
            if open_files is not None:
                self.metrics.gauge("process_open_files", name).set(open_files)

    def record_resources(self, usage: ResourceUsage) -> None:
        """Record the use of CPUs, memory and GPUs; what is unknown has no number."""
        metrics = self.metrics
        metrics.gauge("cpu_usage_ratio").set(_number(usage.cpu_ratio))
        metrics.gauge("memory_usage_ratio").set(_number(usage.memory_ratio))
        metrics.gauge("host_memory_usage_ratio").set(_number(usage.host_memory_ratio))
        values = {
            (name, each.gpu): value
            for each in usage.gpus
            for name, value in (
                ("gpu_utilization_ratio", each.utilization_ratio), ("gpu_memory_used_bytes", each.memory_used_bytes),
                ("gpu_memory_total_bytes", each.memory_total_bytes),
            )
            if value is not None
        }  # fmt: skip
        for name, value in values.items():
            metrics.gauge(*name).set(value)
        for name in self._gpu_metrics - values.keys():  # a lost GPU
            metrics.remove(*name)
        self._gpu_metrics = frozenset(values)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _method(method: str) -> str:
    return method if method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH") else "other"


def _process(pid: int) -> tuple[float, int, int | None] | None:
    """Return CPU seconds, resident bytes and open files of a process; None if the system does not report them."""
    if sys.platform != "linux":
        return None
    fields = read_stat(PROC / str(pid))
    try:
        open_files = len(list((PROC / str(pid) / "fd").iterdir()))
    except OSError:
        return None
    if not fields:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND, int(fields[21]) * PAGE_BYTES, open_files
