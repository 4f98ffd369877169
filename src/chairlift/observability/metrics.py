"""Metrics: the one table of what can be seen from outside, and the registry that holds it; nothing else names a metric.

A name here is the name on the page without its prefix `chairlift_`. Labels have bounded sets of values only: routes,
reasons, phases; never a request's id, and never a client's own words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from chairlift.observability.fast_metrics import Count, Spread

PREFIX = "chairlift_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Kind(Enum):
    """What a metric is."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (1, 8, 32, 128, 512, 2048, 8192, 32_768, 131_072)
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1)


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric.

    Attributes:
        kind: what it is.
        help: one line.
        labels: their names.
        buckets: upper bounds, of a histogram.
    """

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: Sequence[float] = ()


def _count(help: str, *labels: str) -> Declared:
    return Declared(Kind.COUNTER, help, labels)


def _gauge(help: str, *labels: str) -> Declared:
    return Declared(Kind.GAUGE, help, labels)


def _spread(help: str, buckets: Sequence[float], *labels: str) -> Declared:
    return Declared(Kind.HISTOGRAM, help, labels, buckets)


TABLE: Mapping[str, Declared] = {
    # requests, as clients see them
    "http_requests": _count("Answers of HTTP", "route", "method", "status"),
    "requests": _count("Generations that are over, by how they ended: stop, length, abort or an error", "outcome"),
    "refusals": _count("Requests that were not begun, by the error's code", "code"),
    "aborts": _count("Generations that were cut off, by who wanted it", "reason"),
    "open_requests": _gauge("Generations that are under way"),
    "waiting_requests": _gauge("Of those, who waits for a first token"),
    "waiting_tokens": _gauge("Prompt tokens of those"),
    "queue_seconds": _spread("From the engine's queue to the first step", SECONDS),
    "first_token_seconds": _spread("From a request's arrival to its first token", SECONDS),
    "inter_token_seconds": _spread("Between one news of a choice and the next, of streams", SHORT),
    "request_seconds": _spread("From a request's arrival to its end", SECONDS),
    "request_prompt_tokens": _spread("Of one request", TOKENS),
    "request_output_tokens": _spread("Of one request, all choices", TOKENS),
    "prompt_tokens": _count("Of requests that are over"),
    "cached_tokens": _count("Prompt tokens that came from the prefix cache, of requests that are over"),
    "output_tokens": _count("That were sent"),
    # the engine, step by step
    "steps": _count("Steps of the engine"),
    "step_seconds": _spread("Of one step, by phase: schedule, launch, collect, commit", SHORT, "phase"),
    "step_sequences": _spread("Sequences in a step", COUNTS),
    "step_tokens": _spread("Tokens in a step", TOKENS),
    "budget_use": _spread("Share of the step's token budget that was used", SHARES),
    "prefill_tokens": _count("Prompt tokens computed"),
    "decode_tokens": _count("Tokens of generating sequences computed"),
    "running_requests": _gauge("Sequences on board"),
    "queued_requests": _gauge("Sequences in the engine's line"),
    "kv_blocks": _gauge("Blocks of the KV cache: used, cached, free", "state"),
    "kv_use": _gauge("Share of the KV cache that requests hold"),
    "kv_bytes": _gauge("Memory of the KV cache"),
    "kv_free_bytes": _gauge("Of that, what no request holds"),
    "decode_prefill_ratio": _gauge("Tokens of generating sequences over prompt tokens, in the last step that had both"),
    "cache_hit_rate": _gauge("Share of prompt tokens that came from the prefix cache, since the engine's start"),
    "preemptions": _count("Sequences that made way and were computed again"),
    # processes
    "ready": _gauge("1 while requests are served"),
    "engine_restarts": _count("Times the engine was started again"),
    "process_cpu_seconds": _count("Processor time", "process"),
    "process_memory_bytes": _gauge("Resident memory", "process"),
    "process_open_files": _gauge("Descriptors", "process"),
}  # fmt: skip


BUSY = frozenset({"inter_token_seconds", "output_tokens"})
"""What is written for every streamed token, by one thread, see tallies.py; all others are the library's."""


class Metrics:
    """Every metric of TABLE, at zero. Safe to use from any thread, but those of BUSY from one.

    Attributes:
        registry: of all of them.
        more: registries that are on the page, too.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, of which nobody makes use
        self.registry = CollectorRegistry()
        self.more: list[CollectorRegistry] = []
        self._counters: dict[str, Counter | Count] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram | Spread] = {}
        self._children: dict[tuple[str, ...], Any] = {}  # the library takes a lock and a while to find one
        for name, told in TABLE.items():
            if name in BUSY:
                self._add_tally(name, told)
            elif told.kind is Kind.COUNTER:
                self._counters[name] = Counter(PREFIX + name, told.help, told.labels, registry=self.registry)
            elif told.kind is Kind.GAUGE:
                self._gauges[name] = Gauge(PREFIX + name, told.help, told.labels, registry=self.registry)
            else:
                self._histograms[name] = Histogram(
                    PREFIX + name, told.help, told.labels, registry=self.registry, buckets=told.buckets
                )

    def _add_tally(self, name: str, told: Declared) -> None:
        if told.kind is Kind.COUNTER:
            self.registry.register(count := Count(PREFIX + name, told.help))
            self._counters[name] = count
        else:
            self.registry.register(spread := Spread(PREFIX + name, told.help, told.buckets))
            self._histograms[name] = spread

    def counter(self, name: str, *labels: str) -> Counter | Count:
        """Return a counter, or its child of these labels."""
        return self._child(self._counters, name, labels) if labels else self._counters[name]

    def gauge(self, name: str, *labels: str) -> Gauge:
        """Return a gauge, or its child of these labels."""
        return self._child(self._gauges, name, labels) if labels else self._gauges[name]

    def histogram(self, name: str, *labels: str) -> Histogram | Spread:
        """Return a histogram, or its child of these labels."""
        return self._child(self._histograms, name, labels) if labels else self._histograms[name]

    def _child(self, parents: Mapping[str, Any], name: str, labels: tuple[str, ...]) -> Any:
        key = name, *labels
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = parents[name].labels(*labels)
        return child

    def page(self) -> bytes:
        """Return the page that Prometheus reads; takes some milliseconds, so not on an event loop."""
        return b"".join(map(generate_latest, (self.registry, *self.more)))
