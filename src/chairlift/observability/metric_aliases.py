"""Aliases: our metrics once more under names that dashboards of other systems read; only where they are asked for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from chairlift.observability.metrics import PREFIX, Metrics


@dataclass(frozen=True, slots=True)
class Alias:
    """One of our metrics under another name.

    Attributes:
        of: ours.
        scale: by which values (of histograms: bounds and sums) are multiplied.
        labels: our label -> theirs.
        only: our label -> the values that count; everything where it is not in here.
    """

    of: str
    scale: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def covers(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a sample with these labels of ours counts."""
        return all(labels.get(label) in values for label, values in self.only.items())


TRANSFORMERS: Mapping[str, Alias] = {
    "ttft_milliseconds": Alias("first_token_seconds", 1000),
    "request_latency_milliseconds": Alias("request_seconds", 1000),
    "active_requests_count": Alias("running_requests"),
    "waiting_requests_count": Alias("queued_requests"),
    "batch_fill_percentage_percent": Alias("budget_use", 100),
    "decode_prefill_ratio": Alias("decode_prefill_ratio"),
    "prefill_tokens_processed": Alias("prefill_tokens"),
    "decode_tokens_processed": Alias("decode_tokens"),
    "kv_cache_memory_bytes": Alias("kv_bytes"),
    "kv_cache_free_memory_bytes": Alias("kv_free_bytes"),
}
"""The ten of the dashboard that transformers had until 5.8."""

VLLM: Mapping[str, Alias] = {
    "vllm:num_requests_running": Alias("running_requests"),
    "vllm:num_requests_waiting": Alias("queued_requests"),
    "vllm:kv_cache_usage_perc": Alias("kv_use"),
    "vllm:num_preemptions": Alias("preemptions"),
    "vllm:prefix_cache_queries": Alias("prompt_tokens"),
    "vllm:prefix_cache_hits": Alias("cached_tokens"),
    "vllm:prompt_tokens": Alias("prompt_tokens"),
    "vllm:generation_tokens": Alias("output_tokens"),
    "vllm:request_success": Alias(
        "requests", labels={"outcome": "finished_reason"}, only={"outcome": frozenset({"stop", "length", "abort"})}
    ),
    "vllm:iteration_tokens_total": Alias("step_tokens"),
    "vllm:time_to_first_token_seconds": Alias("first_token_seconds"),
    "vllm:inter_token_latency_seconds": Alias("inter_token_seconds"),
    "vllm:e2e_request_latency_seconds": Alias("request_seconds"),
    "vllm:request_queue_time_seconds": Alias("queue_seconds"),
    "vllm:request_prompt_tokens": Alias("request_prompt_tokens"),
    "vllm:request_generation_tokens": Alias("request_output_tokens"),
}
"""The core ones of vLLM."""

SETS: Mapping[str, Mapping[str, Alias]] = {"transformers": TRANSFORMERS, "vllm": VLLM}


class Aliases:
    """A collector that shows what another registry holds under other names, with constant labels besides."""

    def __init__(self, metrics: Metrics, aliases: Mapping[str, Alias], labels: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._aliases = aliases
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as they are now."""
        ours = {metric.name: metric for metric in self._metrics.registry.collect()}
        for name, alias in self._aliases.items():
            metric = ours[PREFIX + alias.of]
            renamed = Metric(name, metric.documentation, metric.type)
            samples = (sample for sample in metric.samples if alias.covers(sample.labels))
            renamed.samples = [self._renamed(sample, metric.name, name, alias) for sample in samples]
            yield renamed

    def _renamed(self, sample: Sample, ours: str, name: str, alias: Alias) -> Sample:
        ending = sample.name.removeprefix(ours)
        labels = {alias.labels.get(label, label): value for label, value in sample.labels.items()}
        value = sample.value
        if ending == "_bucket":
            labels["le"] = labels["le"] if labels["le"] == "+Inf" else str(float(labels["le"]) * alias.scale)
        elif ending in ("_sum", "_total", ""):
            value *= alias.scale
        return sample._replace(name=name + ending, labels={**self._labels, **labels}, value=value)
