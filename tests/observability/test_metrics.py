"""Metrics: valid Prometheus text with every metric of the table, at zero, and bounded labels."""

import re
import threading
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from chairlift.observability.logging import current_trace_id
from chairlift.observability.metrics import CONTENT_TYPE, METRICS, PREFIX, MetricKind, Metrics, current_exemplar
from chairlift.observability.operator_actions_by_metric import ACTIONS
from support_shares import for_each

BOUNDED = {
    "route", "method", "status", "outcome", "code", "reason", "phase", "state", "process", "replica", "source", "limit",
    "rule", "direction", "action", "model", "tenant", "result", "slo", "met", "gpu",
    "position",
}  # fmt: skip
"""Labels that have few values, whatever clients send."""

NEVER_BAD = {
    "request_prompt_tokens", "request_output_tokens", "prompt_tokens", "prefix_cached_tokens", "output_tokens",
    "slo_target_seconds", "model_requests", "tenant_tokens", "step_sequences", "step_tokens", "prefill_tokens",
    "decode_tokens", "sequences_running", "kv_cache_blocks", "engine_limit", "kv_cache_bytes", "decode_prefill_ratio",
    "autoscaler_desired_replicas", "autoscaler_decisions", "autoscaler_panic", "router_moved_requests",
    "process_cpu_seconds", "state_checkpoints", "state_checkpoint_hits", "state_checkpoint_saves",
    "gpu_utilization_ratio", "gpu_memory_total_bytes", "spec_decode_num_drafts", "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
}  # fmt: skip
"""Metrics that describe the load or a state, so that there is nothing to do about a value."""


def parse_metrics(metrics: Metrics) -> Mapping[str, Metric]:
    """Return the rendered metrics by name, without the prefix."""
    result = list(text_string_to_metric_families(metrics.render().decode()))
    assert len({metric.name for metric in result}) == len(result), "a metric is rendered twice"
    return {metric.name.removeprefix(PREFIX): metric for metric in result}


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """Return the one sample of this name and these labels."""
    (result,) = [
        sample.value for metric in parse_metrics(metrics).values() for sample in metric.samples
        if sample.name == PREFIX + name and sample.labels == labels
    ]  # fmt: skip
    return result


def test_the_page_has_every_metric_of_the_table_and_nothing_else() -> None:
    page = parse_metrics(Metrics())
    assert page.keys() == METRICS.keys()
    for name, spec in METRICS.items():
        assert (page[name].type, page[name].documentation) == (spec.kind.value, spec.help)
    assert "charset=utf-8" in CONTENT_TYPE and "0.0.4" in CONTENT_TYPE


def test_what_has_no_labels_is_there_at_zero_from_the_start() -> None:
    """Prometheus needs a first value to compute a rate."""
    page = parse_metrics(Metrics())
    for name, spec in METRICS.items():
        assert bool(page[name].samples) == (not spec.labels), name
        assert all(sample.value == 0 for sample in page[name].samples)
        assert not any(sample.name.endswith("_created") for sample in page[name].samples)


@for_each("name", METRICS)
def test_a_metric_is_declared_as_it_should_be(name: str) -> None:
    spec = METRICS[name]
    assert re.fullmatch("[a-z][a-z0-9_]*[a-z]", name) and spec.help and "\n" not in spec.help
    assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_created", "_info")), "a suffix of the format"
    assert set(spec.labels) <= BOUNDED and len(set(spec.labels)) == len(spec.labels)
    assert bool(spec.buckets) == (spec.kind is MetricKind.HISTOGRAM)
    assert list(spec.buckets) == sorted(set(spec.buckets)) and all(bound > 0 for bound in spec.buckets)
    if "seconds" in name and spec.kind is MetricKind.HISTOGRAM:
        assert spec.buckets[0] <= 0.001 and spec.buckets[-1] >= 5


@for_each("name", [name for name, spec in METRICS.items() if spec.kind is MetricKind.COUNTER])
def test_a_counter_counts(name: str) -> None:
    metrics, labels = Metrics(), {label: f"some {label}" for label in METRICS[name].labels}
    metrics.counter(name, *labels.values()).inc()
    metrics.counter(name, *labels.values()).inc(2)
    assert value(metrics, f"{name}_total", **labels) == 3


@pytest.mark.share(17)
@pytest.mark.parametrize("name", [name for name, spec in METRICS.items() if spec.kind is MetricKind.GAUGE])
def test_a_gauge_shows_the_last_value(name: str) -> None:
    metrics, labels = Metrics(), {label: f"some {label}" for label in METRICS[name].labels}
    metrics.gauge(name, *labels.values()).set(7)
    metrics.gauge(name, *labels.values()).set(0.5)
    assert value(metrics, name, **labels) == 0.5


@pytest.mark.share(4)
@pytest.mark.parametrize("name", [name for name, spec in METRICS.items() if spec.kind is MetricKind.HISTOGRAM])
def test_a_histogram_counts_below_its_bounds(name: str) -> None:
    metrics, labels = Metrics(), {label: f"some {label}" for label in METRICS[name].labels}
    bounds = METRICS[name].buckets
    for observed in (bounds[0], bounds[1], bounds[-1] * 2):
        metrics.histogram(name, *labels.values()).observe(observed)
    assert value(metrics, f"{name}_count", **labels) == 3
    assert value(metrics, f"{name}_sum", **labels) == pytest.approx(bounds[0] + bounds[1] + bounds[-1] * 2)
    for bound, count in ((bounds[0], 1), (bounds[1], 2), (bounds[-1], 2), (float("inf"), 3)):
        le = "+Inf" if bound == float("inf") else str(float(bound))
        assert value(metrics, f"{name}_bucket", **labels, le=le) == count


def test_a_metric_that_can_be_bad_says_what_to_do() -> None:
    assert {name for name, spec in METRICS.items() if not spec.action} == NEVER_BAD
    assert ACTIONS.keys() <= METRICS.keys()
    for action in ACTIONS.values():
        assert action.endswith(".") and "|" not in action


def test_an_undeclared_name_is_our_bug() -> None:
    metrics = Metrics()
    for get_metric in (metrics.counter, metrics.gauge, metrics.histogram):
        with pytest.raises(KeyError):
            get_metric("undeclared")
    with pytest.raises(KeyError):
        metrics.gauge("steps")
    with pytest.raises(ValueError, match="label"):
        metrics.counter("requests_rejected", "one", "too many")


def test_two_of_them_do_not_share_anything() -> None:
    one, other = Metrics(), Metrics()
    one.counter("steps").inc()
    assert value(one, "steps_total") == 1 and value(other, "steps_total") == 0


def test_whatever_a_label_says_the_page_can_be_read() -> None:
    metrics, odd = Metrics(), 'a"b\\c\nd{e}="é'
    metrics.counter("requests_rejected", odd).inc()
    assert value(metrics, "requests_rejected_total", code=odd) == 1


def test_further_registries_are_on_the_same_page() -> None:
    metrics, more = Metrics(), CollectorRegistry()
    Gauge("of_another_library", "A gauge", registry=more).set(3)
    metrics.more.append(more)
    page = parse_metrics(metrics)
    assert page["of_another_library"].samples[0].value == 3 and page.keys() == METRICS.keys() | {"of_another_library"}


def test_a_scraper_that_accepts_openmetrics_gets_it_with_exemplars() -> None:
    metrics, more = Metrics(), CollectorRegistry()
    Gauge("of_another_library", "A gauge", registry=more).set(3)
    metrics.more.append(more)
    token = current_trace_id.set("4bf9")
    metrics.histogram("time_to_first_token_seconds").observe(0.3, current_exemplar())
    current_trace_id.reset(token)
    metrics.histogram("time_to_first_token_seconds").observe(0.3, current_exemplar())
    accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
    page, kind = metrics.render_for(accept)
    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    parsed = {each.name: each for each in openmetrics.text_string_to_metric_families(page.decode())}
    assert parsed.keys() == {PREFIX + name for name in METRICS} | {"of_another_library"}
    exemplars = [
        sample.exemplar.labels for each in parsed.values() for sample in each.samples if sample.exemplar
    ]  # fmt: skip
    assert exemplars == [{"trace_id": "4bf9"}]
    for other in ("", "*/*", "text/plain"):
        assert metrics.render_for(other) == (metrics.render(), CONTENT_TYPE)


def test_threads_lose_no_count() -> None:
    metrics = Metrics()

    def count() -> None:
        for _ in range(500):
            metrics.counter("steps").inc()
            metrics.histogram("step_seconds", "launch").observe(0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        metrics.render()
        thread.join(30)
    assert value(metrics, "steps_total") == value(metrics, "step_seconds_count", phase="launch") == 2000


@pytest.mark.parametrize(("kind", "name"), [("gauge", "kv_cache_blocks"), ("counter", "requests_aborted")])
def test_what_is_removed_is_exported_no_more_and_may_return(kind: str, name: str) -> None:
    metrics = Metrics()
    child = getattr(metrics, kind)(name, "used")
    child.inc(3)
    getattr(metrics, kind)(name, "free").inc(2)
    metrics.remove(name, "used")
    metrics.remove(name, "used")
    metrics.remove(name, "unknown")
    assert len(parse_metrics(metrics)[name].samples) == 1
    getattr(metrics, kind)(name, "used").inc(1)
    assert {sample.value for sample in parse_metrics(metrics)[name].samples} == {2, 1}


def test_a_counter_is_raised_to_the_total_of_another_part() -> None:
    metrics = Metrics()
    for total in (3, 3, 5):
        metrics.raise_to(total, "router_source_failures", "file:a")
        metrics.raise_to(total + 1, "router_source_failures", "file:b")
    assert value(metrics, "router_source_failures_total", source="file:a") == 5
    assert value(metrics, "router_source_failures_total", source="file:b") == 6
