"""FastCounter and FastHistogram export exactly the same samples as the library's own metrics."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from chairlift.observability.fast_metrics import FastCounter, FastHistogram
from chairlift.observability.metrics import SHORT, Metrics

disable_created_metrics()  # as Metrics does; these tests also run alone

VALUES = st.one_of(st.sampled_from([*SHORT, 0.0, 1e9]), st.floats(0, 1e6))


@given(st.lists(VALUES, max_size=50), st.lists(st.sampled_from(SHORT), min_size=1, unique=True).map(sorted))
def test_a_spread_is_a_histogram(values: list[float], bounds: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spread, histogram = (
        FastHistogram("a_seconds", "Of a", bounds),
        Histogram("a_seconds", "Of a", buckets=bounds, registry=theirs),
    )
    ours.register(spread)
    for value in values:
        spread.observe(value)
        histogram.observe(value)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_bucket_keeps_its_last_exemplar_which_only_openmetrics_shows() -> None:
    registry, spread = CollectorRegistry(), FastHistogram("a_seconds", "Of a", (1.0, 2.0))
    registry.register(spread)
    spread.observe(0.5, {"trace_id": "one"})
    two = {"trace_id": "two"}
    spread.observe(0.6, two)
    spread.observe(0.65, two)  # a request's first one in a bucket is enough
    spread.observe(0.7)
    spread.observe(9.0, {"trace_id": "three"})
    page = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    (metric,) = openmetrics.text_string_to_metric_families(page)
    found = {
        sample.labels["le"]: (sample.exemplar.labels["trace_id"], sample.exemplar.value)
        for sample in metric.samples if sample.exemplar is not None
    }  # fmt: skip
    assert found == {"1.0": ("two", 0.6), "+Inf": ("three", 9.0)}
    assert b"trace_id" not in generate_latest(registry)


@given(st.lists(st.integers(0, 1000), max_size=50))
def test_a_count_is_a_counter(amounts: list[int]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    count, counter = FastCounter("a", "Of a"), Counter("a", "Of a", registry=theirs)
    ours.register(count)
    count.inc()
    counter.inc()
    for amount in amounts:
        count.inc(amount)
        counter.inc(amount)
    assert generate_latest(ours) == generate_latest(theirs)


def test_they_are_on_the_page_once() -> None:
    metrics = Metrics()
    metrics.counter("output_tokens").inc(3)
    metrics.histogram("inter_token_latency_seconds").observe(0.2)
    lines = metrics.render().decode().splitlines()
    assert (
        lines.count("chairlift_output_tokens_total 3.0")
        == lines.count("chairlift_inter_token_latency_seconds_count 1.0")
        == 1
    )
    assert len([line for line in lines if line.startswith("# HELP chairlift_inter_token_latency_seconds")]) == 1
