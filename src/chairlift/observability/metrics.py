"""METRICS and Metrics: the single table of metrics and their registry; no other module defines a metric.

A key of METRICS is the exported name without its prefix `chairlift_`. Labels have bounded sets of values only, such as
routes, reasons and phases. A request id or a client's text is never a label's value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from chairlift.observability.fast_metrics import FastCounter, FastHistogram
from chairlift.observability.logging import current_trace_id
from chairlift.observability.operator_actions_by_metric import ACTIONS

PREFIX = "chairlift_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_CONTENT_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"


class MetricKind(Enum):
    """The type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (1, 8, 32, 128, 512, 2048, 8192, 32_768, 131_072)
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """The declaration of one metric.

    Attributes:
        kind: counter, gauge or histogram.
        help: one sentence for operators, with the unit.
        labels: names of the labels.
        buckets: upper bounds of a histogram.
        action: what an operator does when the value is bad (operator_actions_by_metric.py); "" where it never is.
    """

    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: Sequence[float] = ()
    action: str = ""


def _counter(help: str, *labels: str) -> MetricSpec:
    return MetricSpec(MetricKind.COUNTER, help, labels)


def _gauge(help: str, *labels: str) -> MetricSpec:
    return MetricSpec(MetricKind.GAUGE, help, labels)


def _histogram(help: str, buckets: Sequence[float], *labels: str) -> MetricSpec:
    return MetricSpec(MetricKind.HISTOGRAM, help, labels, buckets)


_DECLARATIONS: Mapping[str, MetricSpec] = {
    # requests, from the client's view
    "http_requests": _counter("Number of HTTP responses sent.", "route", "method", "status"),
    "requests_finished": _counter(
        "Number of finished generation requests, by outcome: stop, length, abort or an error code.", "outcome"
    ),
    "requests_rejected": _counter("Number of requests rejected before any work was done, by error code.", "code"),
    "requests_aborted": _counter("Number of aborted generation requests, by reason.", "reason"),
    "requests_open": _gauge("Number of generation requests that have not finished."),
    "admission_waiting_requests": _gauge("Number of admitted requests that wait for their first token."),
    "admission_waiting_tokens": _gauge("Number of prompt tokens of admitted requests that wait for their first token."),
    "request_queue_time_seconds": _histogram(
        "Seconds that a request waited in the engine's waiting queue before its first step.", SECONDS
    ),
    "time_to_first_token_seconds": _histogram("Seconds from a request's arrival to its first token.", SECONDS),
    "inter_token_latency_seconds": _histogram(
        "Seconds between consecutive outputs of a choice of a streamed response.", SHORT
    ),
    "e2e_request_latency_seconds": _histogram("Seconds from a request's arrival to the end of its response.", SECONDS),
    "request_prompt_tokens": _histogram("Number of prompt tokens of a request.", TOKENS),
    "request_output_tokens": _histogram("Number of output tokens of a request, over all its choices.", TOKENS),
    "prompt_tokens": _counter("Number of prompt tokens of finished requests."),
    "prefix_cached_tokens": _counter(
        "Number of prompt tokens of finished requests that were taken from the prefix cache."
    ),
    "output_tokens": _counter("Number of output tokens sent to clients."),
    # by model and tenant
    "slo_requests": _counter(
        "Number of requests by whether they met a latency target (--slo-ttft-ms, --slo-itl-ms), by target: ttft, itl.",
        "slo", "met", "model",
    ),
    "slo_target_seconds": _gauge("Latency target in seconds, by target: ttft, itl.", "slo"),
    "model_requests": _counter(
        "Number of generation requests by result: success, client_error, server_error, rejected, aborted.",
        "model", "result",
    ),
    "tenant_requests": _counter("Number of responses to a tenant's requests for tokens.", "tenant", "status"),
    "tenant_tokens": _counter("Number of tokens of a tenant's finished requests, prompt and output.", "tenant"),
    "tenant_slo_requests": _counter(
        "Number of a tenant's requests by whether they met a latency target, by target: ttft, itl.",
        "slo", "met", "tenant",
    ),
    # the engine's steps
    "steps": _counter("Number of engine steps."),
    "step_seconds": _histogram(
        "Seconds that a step spent in each phase: schedule, launch, collect, commit.", SHORT, "phase"
    ),
    "step_sequences": _histogram("Number of sequences in a step.", COUNTS),
    "step_tokens": _histogram("Number of tokens in a step.", TOKENS),
    "step_token_budget_ratio": _histogram("Share of the token budget that a step used, from 0 to 1.", SHARES),
    "prefill_tokens": _counter("Number of tokens computed in prefill, including recomputed tokens."),
    "decode_tokens": _counter("Number of tokens computed in decode."),
    "sequences_running": _gauge("Number of sequences that are running."),
    "sequences_waiting": _gauge("Number of sequences in the engine's waiting queue."),
    "kv_cache_blocks": _gauge("Number of KV cache blocks, by state: used, cached, free.", "state"),
    "kv_cache_usage_ratio": _gauge("Share of the KV cache's blocks that requests hold, from 0 to 1."),
    "engine_limit": _gauge(
        "What the scheduler may use, which --tune-limits changes, by limit: running_requests, batch_tokens, kv_blocks.",
        "limit",
    ),
    "engine_limit_changes": _counter("Number of changes of a limit by --tune-limits, by limit.", "limit"),
    "kv_cache_bytes": _gauge("Size of the KV cache in bytes."),
    "kv_cache_free_bytes": _gauge("Bytes of the KV cache that no request holds."),
    "decode_prefill_ratio": _gauge(
        "Decode tokens divided by prefill tokens, in the last step that computed both."
    ),
    "prefix_cache_hit_ratio": _gauge(
        "Share of prompt tokens taken from the prefix cache since the engine's start, from 0 to 1."
    ),
    "state_checkpoints": _gauge(
        "Number of saved states of a model whose layers keep one, by state: used, cached, free.", "state"
    ),
    "state_checkpoint_hits": _counter("Number of saved states with which sequences have started."),
    "state_checkpoint_saves": _counter("Number of states that were saved for later sequences."),
    "state_checkpoint_evictions": _counter("Number of saved states that were evicted for others."),
    "preemptions": _counter("Number of preemptions; a preempted sequence is computed again."),
    "spec_decode_num_drafts": _counter("Number of times that a sequence had drafts in a step."),
    "spec_decode_num_draft_tokens": _counter("Number of drafts: tokens that were guessed and computed in one step."),
    "spec_decode_num_accepted_tokens": _counter("Number of drafts that the model confirmed."),
    "spec_decode_num_accepted_tokens_per_pos": _counter(
        "Number of drafts that the model confirmed, by their position in a step, from 0; 15 also has later ones.",
        "position",
    ),
    "out_of_memory_steps": _counter("Number of steps that ran out of memory; their sequences ran in smaller steps."),
    # the router's replicas
    "router_replicas": _gauge(
        "Number of replicas, by state: pending, healthy, probing, ejected, unhealthy, not_ready, drained, removed.",
        "state",
    ),
    "router_replica_open_requests": _gauge("Number of requests that the router has open on a replica.", "replica"),
    "router_replica_transitions": _counter("Number of changes of a replica's state, by the new state.", "state"),
    "router_replica_restarts": _counter("Number of times that a replica was found to be a new process.", "replica"),
    "router_ejections": _counter("Number of ejections of replicas, by reason.", "reason"),
    "router_ejections_suppressed": _counter(
        "Number of ejections that did not happen because half of the replicas of a model were ejected."
    ),
    "router_panic_picks": _counter("Number of requests that were routed while no replica of the model was healthy."),
    "router_probes": _counter("Number of active probes of replicas, by outcome: success or failure.", "outcome"),
    "router_notifications": _counter("Number of webhook notifications, by outcome: sent, failed, dropped.", "outcome"),
    "router_attempts": _counter("Number of attempts that have ended, by outcome: success, fault, neutral.", "outcome"),
    "router_request_attempts": _histogram("Number of attempts of a request.", (1, 2, 3, 4, 6, 8)),
    "router_moved_requests": _counter(
        "Number of times that a request without a first token moved to a replica that had become ready."
    ),
    "router_held_requests": _gauge("Number of requests that wait because no replica is ready."),
    "router_source_up": _gauge("1 if a discovery source answers with a list of replicas, otherwise 0.", "source"),
    "router_source_replicas": _gauge("Number of replicas in the list of a discovery source that is in use.", "source"),
    "router_source_failures": _counter("Number of failures of a discovery source.", "source"),
    "router_shared_state_up": _gauge("1 if limits, sessions and ejections are shared as configured, otherwise 0."),
    "router_shared_state_outages": _counter("Number of times that the shared state became unavailable."),
    # the autoscaler
    "autoscaler_target_replicas": _gauge("Number of starting and ready replicas that the pool is to have."),
    "autoscaler_current_replicas": _gauge("Number of starting and ready replicas that the pool has."),
    "autoscaler_replicas": _gauge("Number of replicas of the pool, by state: starting, ready, draining.", "state"),
    "autoscaler_desired_replicas": _gauge("Number of replicas that the load needs by each rule, a fraction.", "rule"),
    "autoscaler_decisions": _counter("Number of decisions, by direction: up, down, none.", "direction"),
    "autoscaler_failures": _counter(
        "Number of failures of the autoscaler, by what failed: sample, decide, apply.", "action"
    ),
    "autoscaler_panic": _gauge("1 while the pool follows a burst and does not shrink, otherwise 0."),
    "autoscaler_data_missing": _gauge("1 while the pool does not shrink because data is missing, otherwise 0."),
    "autoscaler_held_requests": _gauge("Number of requests that wait for a first replica."),
    "autoscaler_cost_per_hour": _gauge("Cost of the replicas per hour, draining ones included."),
    "autoscaler_cold_start_seconds": _gauge("Seconds that a replica takes to start, the median of recent starts."),
    # processes
    "ready": _gauge("1 if the server accepts requests, otherwise 0."),
    "engine_restarts": _counter("Number of restarts of the engine process."),
    "process_cpu_seconds": _counter("Seconds of CPU time that a process used.", "process"),
    "process_memory_bytes": _gauge("Bytes of resident memory of a process.", "process"),
    "process_open_files": _gauge("Number of open file descriptors of a process.", "process"),
    "tls_certificate_expiry_timestamp_seconds": _gauge(
        "Time at which the server's own certificate expires, in seconds since 1970; 0 without TLS."
    ),
    # resources; NaN, or no GPU, where the system does not report them
    "cpu_usage_ratio": _gauge(
        "CPU time of the server and its engine as a share of the CPUs on which they may run, over the last seconds."
    ),
    "memory_usage_ratio": _gauge(
        "Resident memory of the server and its engine as a share of their memory limit, or of the host's memory."
    ),
    "host_memory_usage_ratio": _gauge(
        "Share of memory in use by all processes, of the host or of the server's cgroup, whichever is fuller."
    ),
    "gpu_utilization_ratio": _gauge("Share of the time in which a GPU computes, from 0 to 1.", "gpu"),
    "gpu_memory_used_bytes": _gauge("Bytes of a GPU's memory in use, by any process.", "gpu"),
    "gpu_memory_total_bytes": _gauge("Bytes of a GPU's memory.", "gpu"),
    "engine_gpu_memory_bytes": _gauge(
        "Bytes of the memory of the engine's first GPU, by state: tensors, or reserved, which also has what the "
        "allocator keeps for later tensors.",
        "state",
    ),
}  # fmt: skip

METRICS: Mapping[str, MetricSpec] = {
    name: replace(spec, action=ACTIONS.get(name, "")) for name, spec in _DECLARATIONS.items()
}
"""Every metric by its name without the prefix."""

REQUEST_COUNTERS = frozenset({
    "slo_requests", "slo_target_seconds", "model_requests", "tenant_requests", "tenant_tokens", "tenant_slo_requests",
})  # fmt: skip
"""The metrics by model and tenant, which servers and routers export."""


ROUTER_METRICS = frozenset({
    "http_requests", "requests_finished", "requests_rejected", "requests_open", "admission_waiting_requests",
    "time_to_first_token_seconds", "e2e_request_latency_seconds", "ready", "process_cpu_seconds",
    "process_memory_bytes", "process_open_files", "tls_certificate_expiry_timestamp_seconds",
}) | REQUEST_COUNTERS | {name for name in METRICS if name.startswith("router_")}  # fmt: skip
"""The metrics that a router exports."""

AUTOSCALER_METRICS = frozenset(name for name in METRICS if name.startswith("autoscaler_"))
"""The metrics that an autoscaler exports."""

SERVER_METRICS = frozenset(name for name in METRICS if not name.startswith("router_")) - AUTOSCALER_METRICS
"""The metrics that a replica's server exports."""

HOT_METRICS = frozenset({"inter_token_latency_seconds", "output_tokens"})
"""Metrics that one thread writes for every streamed token (fast_metrics.py); the others are prometheus_client's."""


class Metrics:
    """Every metric of METRICS, starting at zero. Thread-safe, except HOT_METRICS, which allow one writing thread.

    Attributes:
        registry: holds every metric of METRICS.
        more: further registries that `render` exports.
    """

    def __init__(self, names: frozenset[str] = frozenset(METRICS)) -> None:
        """Create the metrics of these names, by default all."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # avoids an unused `_created` series per metric
        self.registry = CollectorRegistry()
        self.more: list[CollectorRegistry] = []
        self._counters: dict[str, Counter | FastCounter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram | FastHistogram] = {}
        self._totals: dict[tuple[str, ...], int] = {}
        self._children: dict[tuple[str, ...], Any] = {}  # a cache: prometheus_client's lookup is slow and takes a lock
        for name, spec in METRICS.items():
            if name not in names:
                continue
            if name in HOT_METRICS:
                self._add_fast_metric(name, spec)
            elif spec.kind is MetricKind.COUNTER:
                self._counters[name] = Counter(PREFIX + name, spec.help, spec.labels, registry=self.registry)
            elif spec.kind is MetricKind.GAUGE:
                self._gauges[name] = Gauge(PREFIX + name, spec.help, spec.labels, registry=self.registry)
            else:
                self._histograms[name] = Histogram(
                    PREFIX + name, spec.help, spec.labels, registry=self.registry, buckets=spec.buckets
                )

    def _add_fast_metric(self, name: str, spec: MetricSpec) -> None:
        if spec.kind is MetricKind.COUNTER:
            self.registry.register(counter := FastCounter(PREFIX + name, spec.help))
            self._counters[name] = counter
        else:
            self.registry.register(histogram := FastHistogram(PREFIX + name, spec.help, spec.buckets))
            self._histograms[name] = histogram

    def raise_to(self, total: int, name: str, *labels: str) -> None:
        """Raise a counter to a total that another part counts; call it from one thread."""
        key = (name, *labels)
        self.counter(*key).inc(total - self._totals.get(key, 0))
        self._totals[key] = total

    def counter(self, name: str, *labels: str) -> Counter | FastCounter:
        """Return a counter, or its child for these labels."""
        return self._child(self._counters, name, labels) if labels else self._counters[name]

    def gauge(self, name: str, *labels: str) -> Gauge:
        """Return a gauge, or its child for these labels."""
        return self._child(self._gauges, name, labels) if labels else self._gauges[name]

    def histogram(self, name: str, *labels: str) -> Histogram | FastHistogram:
        """Return a histogram, or its child for these labels."""
        return self._child(self._histograms, name, labels) if labels else self._histograms[name]

    def _child(self, parents: Mapping[str, Any], name: str, labels: tuple[str, ...]) -> Any:
        key = name, *labels
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = parents[name].labels(*labels)
        return child

    def remove(self, name: str, *labels: str) -> None:
        """Stop exporting a labelled gauge or counter, because what it measured is gone."""
        if self._children.pop((name, *labels), None) is not None:
            parents: Mapping[str, Any] = self._counters if METRICS[name].kind is MetricKind.COUNTER else self._gauges
            parents[name].remove(*labels)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all registries."""
        for registry in (self.registry, *self.more):
            yield from registry.collect()

    def render(self) -> bytes:
        """Return the Prometheus exposition text. It takes milliseconds, so an event loop must not call it."""
        return b"".join(map(generate_latest, (self.registry, *self.more)))

    def render_for(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type in the format that a header Accept asks for; see `render`.

        Only OpenMetrics has exemplars.
        """
        if OPENMETRICS not in accept:
            return self.render(), CONTENT_TYPE
        return generate_openmetrics(self), OPENMETRICS_CONTENT_TYPE  # type: ignore[no-untyped-call]


def current_exemplar() -> dict[str, str] | None:
    """Return the exemplar of the current task's request, which names its trace; None unless it is sampled."""
    trace_id = current_trace_id.get()
    return {"trace_id": trace_id} if trace_id else None
