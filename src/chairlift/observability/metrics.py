"""METRICS and Metrics: the single table of metrics and their registry; no other module defines a metric.

A name here is the exported name without its prefix `chairlift_`. Labels have bounded sets of values only: routes,
reasons, phases; never a request's id, and never text from a client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from chairlift.observability.fast_metrics import FastCounter, FastHistogram

PREFIX = "chairlift_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
        help: one line for people.
        labels: names of the labels.
        buckets: upper bounds of a histogram.
    """

    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: Sequence[float] = ()


def _counter(help: str, *labels: str) -> MetricSpec:
    return MetricSpec(MetricKind.COUNTER, help, labels)


def _gauge(help: str, *labels: str) -> MetricSpec:
    return MetricSpec(MetricKind.GAUGE, help, labels)


def _histogram(help: str, buckets: Sequence[float], *labels: str) -> MetricSpec:
    return MetricSpec(MetricKind.HISTOGRAM, help, labels, buckets)


METRICS: Mapping[str, MetricSpec] = {
    # requests, from the client's view
    "http_requests": _counter("HTTP responses sent", "route", "method", "status"),
    "requests": _counter("Finished generations, by outcome: stop, length, abort or an error code", "outcome"),
    "refusals": _counter("Rejected requests, by error code", "code"),
    "aborts": _counter("Aborted generations, by reason", "reason"),
    "open_requests": _gauge("Generations in progress"),
    "waiting_requests": _gauge("Generations in progress that wait for their first token"),
    "waiting_tokens": _gauge("Prompt tokens of generations that wait for their first token"),
    "queue_seconds": _histogram("Seconds from entering the engine's waiting queue to the first step", SECONDS),
    "first_token_seconds": _histogram("Seconds from a request's arrival to its first token", SECONDS),
    "inter_token_seconds": _histogram("Seconds between consecutive outputs of a choice, streams only", SHORT),
    "request_seconds": _histogram("Seconds from a request's arrival to its end", SECONDS),
    "request_prompt_tokens": _histogram("Prompt tokens of one request", TOKENS),
    "request_output_tokens": _histogram("Output tokens of one request, all choices", TOKENS),
    "prompt_tokens": _counter("Prompt tokens of finished requests"),
    "cached_tokens": _counter("Prompt tokens of finished requests that came from the prefix cache"),
    "output_tokens": _counter("Output tokens sent"),
    # the engine, step by step
    "steps": _counter("Steps the engine has run"),
    "step_seconds": _histogram("Seconds of one step, by phase: schedule, launch, collect, commit", SHORT, "phase"),
    "step_sequences": _histogram("Sequences in a step", COUNTS),
    "step_tokens": _histogram("Tokens in a step", TOKENS),
    "budget_use": _histogram("Used share of a step's token budget", SHARES),
    "prefill_tokens": _counter("Prompt tokens computed"),
    "decode_tokens": _counter("Decode tokens computed"),
    "running_requests": _gauge("Running sequences"),
    "queued_requests": _gauge("Sequences in the engine's waiting queue"),
    "kv_blocks": _gauge("Blocks of the KV cache: used, cached, free", "state"),
    "kv_use": _gauge("Share of the KV cache that requests hold"),
    "kv_bytes": _gauge("Bytes of the KV cache"),
    "kv_free_bytes": _gauge("Bytes of the KV cache that no request holds"),
    "decode_prefill_ratio": _gauge("Decode tokens divided by prompt tokens, in the last step that had both"),
    "cache_hit_rate": _gauge("Share of prompt tokens that came from the prefix cache since the engine's start"),
    "preemptions": _counter("Preempted sequences, which are recomputed"),
    # processes
    "ready": _gauge("1 while the server accepts requests, else 0"),
    "engine_restarts": _counter("Restarts of the engine"),
    "process_cpu_seconds": _counter("Seconds of CPU time used", "process"),
    "process_memory_bytes": _gauge("Bytes of resident memory", "process"),
    "process_open_files": _gauge("Open file descriptors", "process"),
}  # fmt: skip


HOT_METRICS = frozenset({"inter_token_seconds", "output_tokens"})
"""Metrics written by one thread for every streamed token, see fast_metrics.py; all others are the library's."""


class Metrics:
    """Every metric of METRICS, starting at zero. Thread-safe, except HOT_METRICS, which take one writing thread.

    Attributes:
        registry: holds all of them.
        more: further registries to export.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # avoids a second, unused series for each
        self.registry = CollectorRegistry()
        self.more: list[CollectorRegistry] = []
        self._counters: dict[str, Counter | FastCounter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram | FastHistogram] = {}
        self._children: dict[tuple[str, ...], Any] = {}  # cache: the library's lookup is slow and takes a lock
        for name, spec in METRICS.items():
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
            self.registry.register(count := FastCounter(PREFIX + name, spec.help))
            self._counters[name] = count
        else:
            self.registry.register(spread := FastHistogram(PREFIX + name, spec.help, spec.buckets))
            self._histograms[name] = spread

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

    def render(self) -> bytes:
        """Return the Prometheus exposition text; takes some milliseconds, so do not call it on an event loop."""
        return b"".join(map(generate_latest, (self.registry, *self.more)))
