"""AliasCollector: exports Chairlift's values under the names and in the units of other systems."""

from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from chairlift.observability.metric_aliases import ALIAS_SETS, TRANSFORMERS, VLLM, Alias, AliasCollector
from chairlift.observability.metrics import METRICS, PREFIX, MetricKind, Metrics

# Name -> type of each metric, as the other systems export them.
OF_VLLM = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:num_preemptions_total": "counter",
    "vllm:spec_decode_num_drafts_total": "counter",
    "vllm:spec_decode_num_draft_tokens_total": "counter",
    "vllm:spec_decode_num_accepted_tokens_total": "counter",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": "counter",
    "vllm:prefix_cache_queries_total": "counter",
    "vllm:prefix_cache_hits_total": "counter",
    "vllm:prompt_tokens_total": "counter",
    "vllm:generation_tokens_total": "counter",
    "vllm:request_success_total": "counter",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
}
OF_TRANSFORMERS = {
    "ttft_milliseconds": "histogram",
    "active_requests_count": "gauge",
    "waiting_requests_count": "gauge",
    "request_latency_milliseconds": "histogram",
    "decode_prefill_ratio": "gauge",
    "prefill_tokens_processed_total": "counter",
    "decode_tokens_processed_total": "counter",
    "batch_fill_percentage_percent": "histogram",
    "kv_cache_free_memory_bytes": "gauge",
    "kv_cache_memory_bytes": "gauge",
}
ORIGINALS = {"vllm": OF_VLLM, "transformers": OF_TRANSFORMERS}


def with_aliases(aliases: Mapping[str, Alias], **labels: str) -> Metrics:
    metrics, registry = Metrics(), CollectorRegistry()
    registry.register(AliasCollector(metrics, aliases, labels))
    metrics.more.append(registry)
    return metrics


def aliased_metrics(metrics: Metrics) -> dict[str, Metric]:
    """Return the rendered metrics that are aliases, by name."""
    result = text_string_to_metric_families(metrics.render().decode())
    return {metric.name: metric for metric in result if not metric.name.startswith(PREFIX)}


def value(metrics: Metrics, name: str, **labels: str) -> float:
    (result,) = [
        sample.value for metric in aliased_metrics(metrics).values() for sample in metric.samples
        if sample.name == name and sample.labels == labels
    ]  # fmt: skip
    return result


@pytest.mark.parametrize("name", ALIAS_SETS)
def test_the_page_has_every_name_of_the_original_in_its_type(name: str) -> None:
    page = with_aliases(ALIAS_SETS[name], model_name="m").render().decode()
    types = dict(line.split()[2:] for line in page.splitlines() if line.startswith("# TYPE ") and PREFIX not in line)
    assert types == ORIGINALS[name]
    assert page.count("# HELP ") == page.count("# TYPE ") == len(METRICS) + len(types)


def test_each_is_an_alias_of_something_and_of_its_kind() -> None:
    assert ALIAS_SETS.keys() == ORIGINALS.keys() and not VLLM.keys() & TRANSFORMERS.keys()
    for aliases in ALIAS_SETS.values():
        for alias in aliases.values():
            assert set(alias.labels) <= set(METRICS[alias.source].labels)


@pytest.mark.parametrize("name", ALIAS_SETS)
def test_all_of_them_at_once_can_be_read(name: str) -> None:
    metrics = with_aliases({**TRANSFORMERS, **VLLM}, model_name='a"b')
    page = aliased_metrics(metrics)
    assert {each.removesuffix("_total") for each in ORIGINALS[name]} <= {each.removesuffix("_total") for each in page}
    for metric in page.values():
        assert all(sample.labels["model_name"] == 'a"b' for sample in metric.samples)


def test_values_are_ours_as_they_are_now() -> None:
    metrics = with_aliases(VLLM, model_name="m")
    assert value(metrics, "vllm:num_requests_running", model_name="m") == 0
    metrics.gauge("sequences_running").set(3)
    metrics.counter("preemptions").inc(2)
    metrics.histogram("time_to_first_token_seconds").observe(0.3)
    assert value(metrics, "vllm:num_requests_running", model_name="m") == 3
    assert value(metrics, "vllm:num_preemptions_total", model_name="m") == 2
    assert value(metrics, "vllm:time_to_first_token_seconds_sum", model_name="m") == 0.3
    assert value(metrics, "vllm:time_to_first_token_seconds_count", model_name="m") == 1
    assert value(metrics, "vllm:time_to_first_token_seconds_bucket", model_name="m", le="0.25") == 0
    assert value(metrics, "vllm:time_to_first_token_seconds_bucket", model_name="m", le="0.5") == 1


def test_a_histogram_in_another_unit_has_its_bounds_and_its_sum_in_it_and_its_counts_as_they_are() -> None:
    metrics = with_aliases(TRANSFORMERS)
    for seconds in (0.0025, 0.2, 1000):
        metrics.histogram("time_to_first_token_seconds").observe(seconds)
    assert value(metrics, "ttft_milliseconds_sum") == pytest.approx(1_000_202.5)
    assert value(metrics, "ttft_milliseconds_count") == 3
    for bound, count in (("1.0", 0), ("2.5", 1), ("100.0", 1), ("250.0", 2), ("600000.0", 2), ("+Inf", 3)):
        assert value(metrics, "ttft_milliseconds_bucket", le=bound) == count
    metrics.histogram("step_token_budget_ratio").observe(0.5)
    assert value(metrics, "batch_fill_percentage_percent_sum") == 50
    assert value(metrics, "batch_fill_percentage_percent_bucket", le="50.0") == 1


def test_an_exemplar_is_in_the_unit_of_its_bucket() -> None:
    metrics = with_aliases(TRANSFORMERS)
    metrics.histogram("time_to_first_token_seconds").observe(0.2, {"trace_id": "4bf9"})
    exemplars = [
        (sample.name, sample.labels["le"], sample.exemplar.value)
        for metric in metrics.collect() for sample in metric.samples if sample.exemplar is not None
    ]  # fmt: skip
    assert exemplars == [
        ("chairlift_time_to_first_token_seconds_bucket", "0.25", 0.2), ("ttft_milliseconds_bucket", "250.0", 200.0),
    ]  # fmt: skip


@pytest.mark.share(2)
@pytest.mark.parametrize("name", [name for name, alias in TRANSFORMERS.items() if alias.scale != 1])
def test_scaled_bounds_are_round_numbers(name: str) -> None:
    (metric,) = [metric for metric in aliased_metrics(with_aliases(TRANSFORMERS)).values() if metric.name == name]
    bounds = [sample.labels["le"] for sample in metric.samples if sample.name.endswith("_bucket")]
    assert bounds[-1] == "+Inf" and all(len(bound) <= len("600000.0") for bound in bounds)
    assert [float(bound) for bound in bounds] == sorted(map(float, bounds))


def test_every_kind_is_scaled() -> None:
    metrics = with_aliases({
        "g": Alias("kv_cache_usage_ratio", 100), "c": Alias("steps", 1000), "h": Alias("step_token_budget_ratio", 10),
    })  # fmt: skip
    metrics.gauge("kv_cache_usage_ratio").set(0.25)
    metrics.counter("steps").inc(3)
    metrics.histogram("step_token_budget_ratio").observe(0.5)
    assert (value(metrics, "g"), value(metrics, "c_total")) == (25, 3000)
    assert (value(metrics, "h_sum"), value(metrics, "h_count")) == (5, 1)
    assert {METRICS[name].kind for name in ("kv_cache_usage_ratio", "steps", "step_token_budget_ratio")} == set(
        MetricKind
    )


def test_labels_have_their_names_and_ours_stay() -> None:
    metrics = with_aliases(VLLM, model_name="m", engine="0")
    metrics.counter("requests_finished", "stop").inc()
    metrics.counter("requests_finished", "abort").inc(2)
    for reason, count in (("stop", 1), ("abort", 2)):
        assert value(metrics, "vllm:request_success_total", model_name="m", engine="0", finished_reason=reason) == count


def test_nothing_of_ours_changes() -> None:
    plain, metrics = Metrics(), with_aliases({**TRANSFORMERS, **VLLM}, model_name="m")
    for each in (plain, metrics):
        each.histogram("e2e_request_latency_seconds").observe(2)
        each.counter("requests_finished", "stop").inc()
    first = metrics.render()
    assert first.startswith(plain.render()) and first == metrics.render()
    assert aliased_metrics(plain) == {}
