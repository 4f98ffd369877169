"""AliasCollector: exports metrics also under the names that dashboards of other systems read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from chairlift.observability.metrics import PREFIX, Metrics


@dataclass(frozen=True, slots=True)
class Alias:
    """One Chairlift metric under another name.

    Attributes:
        source: Chairlift's name.
        scale: factor for values (for histograms: bounds and sums).
        labels: Chairlift's label -> the other system's label.
        only: Chairlift's label -> values to include; a label that is absent here includes every value.
    """

    source: str
    scale: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def covers(self, labels: Mapping[str, str]) -> bool:
        """Return whether the alias includes a sample with these Chairlift labels."""
        return all(labels.get(label) in values for label, values in self.only.items())


TRANSFORMERS: Mapping[str, Alias] = {
    "ttft_milliseconds": Alias("time_to_first_token_seconds", 1000),
    "request_latency_milliseconds": Alias("e2e_request_latency_seconds", 1000),
    "active_requests_count": Alias("sequences_running"),
    "waiting_requests_count": Alias("sequences_waiting"),
    "batch_fill_percentage_percent": Alias("step_token_budget_ratio", 100),
    "decode_prefill_ratio": Alias("decode_prefill_ratio"),
    "prefill_tokens_processed": Alias("prefill_tokens"),
    "decode_tokens_processed": Alias("decode_tokens"),
    "kv_cache_memory_bytes": Alias("kv_cache_bytes"),
    "kv_cache_free_memory_bytes": Alias("kv_cache_free_bytes"),
}
"""The ten metrics of the dashboard that transformers had until 5.8."""

VLLM: Mapping[str, Alias] = {
    "vllm:num_requests_running": Alias("sequences_running"),
    "vllm:num_requests_waiting": Alias("sequences_waiting"),
    "vllm:kv_cache_usage_perc": Alias("kv_cache_usage_ratio"),
    "vllm:num_preemptions": Alias("preemptions"),
    "vllm:spec_decode_num_drafts": Alias("spec_decode_num_drafts"),
    "vllm:spec_decode_num_draft_tokens": Alias("spec_decode_num_draft_tokens"),
    "vllm:spec_decode_num_accepted_tokens": Alias("spec_decode_num_accepted_tokens"),
    "vllm:spec_decode_num_accepted_tokens_per_pos": Alias("spec_decode_num_accepted_tokens_per_pos"),
    "vllm:prefix_cache_queries": Alias("prompt_tokens"),
    "vllm:prefix_cache_hits": Alias("prefix_cached_tokens"),
    "vllm:prompt_tokens": Alias("prompt_tokens"),
    "vllm:generation_tokens": Alias("output_tokens"),
    "vllm:request_success": Alias(
        "requests_finished",
        labels={"outcome": "finished_reason"},
        only={"outcome": frozenset({"stop", "length", "abort"})},
    ),
    "vllm:iteration_tokens_total": Alias("step_tokens"),
    "vllm:time_to_first_token_seconds": Alias("time_to_first_token_seconds"),
    "vllm:inter_token_latency_seconds": Alias("inter_token_latency_seconds"),
    "vllm:e2e_request_latency_seconds": Alias("e2e_request_latency_seconds"),
    "vllm:request_queue_time_seconds": Alias("request_queue_time_seconds"),
    "vllm:request_prompt_tokens": Alias("request_prompt_tokens"),
    "vllm:request_generation_tokens": Alias("request_output_tokens"),
}
"""The core metrics of vLLM."""

ALIAS_SETS: Mapping[str, Mapping[str, Alias]] = {"transformers": TRANSFORMERS, "vllm": VLLM}


class AliasCollector:
    """Collects the aliases of another registry's metrics, with additional constant labels."""

    def __init__(self, metrics: Metrics, aliases: Mapping[str, Alias], labels: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._aliases = aliases
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """Yield the renamed metrics with their current values."""
        metrics = {metric.name: metric for metric in self._metrics.registry.collect()}
        for name, alias in self._aliases.items():
            metric = metrics[PREFIX + alias.source]
            renamed = Metric(name, metric.documentation, metric.type)
            samples = (sample for sample in metric.samples if alias.covers(sample.labels))
            renamed.samples = [self._renamed(sample, metric.name, name, alias) for sample in samples]
            yield renamed

    def _renamed(self, sample: Sample, source_name: str, name: str, alias: Alias) -> Sample:
        suffix = sample.name.removeprefix(source_name)
        labels = {alias.labels.get(label, label): value for label, value in sample.labels.items()}
        value, exemplar = sample.value, sample.exemplar
        if suffix == "_bucket":
            labels["le"] = labels["le"] if labels["le"] == "+Inf" else str(float(labels["le"]) * alias.scale)
            exemplar = exemplar and exemplar._replace(value=exemplar.value * alias.scale)
        elif suffix in ("_sum", "_total", ""):
            value *= alias.scale
        return sample._replace(name=name + suffix, labels={**self._labels, **labels}, value=value, exemplar=exemplar)
