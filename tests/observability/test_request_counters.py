"""RequestCounters: what counts as within a latency target, by model and tenant, with bounded labels."""

import pytest

from chairlift.observability.latency_targets import LatencyTargets
from chairlift.observability.metrics import Metrics
from chairlift.observability.request_counters import MAX_TENANT_LABELS, RequestCounters
from chairlift.observability.request_results import RequestResult

BOTH = LatencyTargets(ttft_seconds=1.0, itl_seconds=0.1)


def counts(metrics: Metrics, prefix: str) -> dict[str, float]:
    """Return the series of a metric that are above zero, by their labels."""
    lines = [line for line in metrics.render().decode().splitlines() if line.startswith(f"chairlift_{prefix}")]
    values = {line.partition("{")[2].partition("}")[0]: float(line.rpartition(" ")[2]) for line in lines}
    return {labels: value for labels, value in values.items() if value}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_a_request_is_within_a_target_up_to_its_bound(metrics: Metrics) -> None:
    counters = RequestCounters(metrics, BOTH)
    for seconds in (0.5, 1.0, 1.001):
        counters.record_ttft(seconds, "m", "alice")
    counters.record_itl(0.2, "m", "")
    assert counts(metrics, "slo_requests_total") == {
        'met="true",model="m",slo="ttft"': 2, 'met="false",model="m",slo="ttft"': 1,
        'met="false",model="m",slo="itl"': 1,
    }  # fmt: skip
    assert counts(metrics, "tenant_slo_requests_total") == {
        'met="true",slo="ttft",tenant="alice"': 2, 'met="false",slo="ttft",tenant="alice"': 1,
        'met="false",slo="itl",tenant="none"': 1,
    }  # fmt: skip
    assert counts(metrics, "slo_target_seconds") == {'slo="ttft"': 1.0, 'slo="itl"': 0.1}


def test_the_counters_of_a_model_are_there_at_zero(metrics: Metrics) -> None:
    """Prometheus sees the first error only as a change from zero."""
    RequestCounters(metrics, BOTH).add_model("m")
    page = metrics.render().decode()
    for labels in ('met="false",model="m",slo="itl"', 'met="true",model="m",slo="ttft"'):
        assert f"chairlift_slo_requests_total{{{labels}}} 0.0" in page
    for model in ("m", "none"):
        assert f'chairlift_model_requests_total{{model="{model}",result="server_error"}} 0.0' in page


def test_a_response_before_any_work_is_counted_by_its_status(metrics: Metrics) -> None:
    counters = RequestCounters(metrics, LatencyTargets())
    for route, status, was_submitted in (
        ("/v1/completions", 503, False), ("/v1/completions", 429, False), ("/v1/chat/completions", 400, False),
        ("/v1/completions", 499, False), ("/v1/completions", 500, True), ("/v1/models", 500, False),
    ):  # fmt: skip
        counters.record_response(route, "a", status, was_submitted=was_submitted)
    assert counts(metrics, "model_requests_total") == {
        f'model="none",result="{result}"': 1.0 for result in ("server_error", "rejected", "client_error", "aborted")
    }
    assert sum(counts(metrics, "tenant_requests_total").values()) == 5


@pytest.mark.parametrize(("result", "seconds", "met"), [
    (RequestResult.SERVER_ERROR, 0.1, "false"), (RequestResult.ABORTED, 0.1, None),
    (RequestResult.ABORTED, 2.0, "false"),
    (RequestResult.CLIENT_ERROR, 2.0, None), (RequestResult.REJECTED, 2.0, None), (RequestResult.SUCCESS, 0.1, "true"),
    (RequestResult.SUCCESS, 2.0, "false"),
])  # fmt: skip
def test_a_request_without_a_token_misses_the_target_where_the_server_is_at_fault(
    metrics: Metrics, result: RequestResult, seconds: float, met: str | None
) -> None:
    RequestCounters(metrics, BOTH).record_no_first_token(result, seconds, "m", "a")
    expected = {} if met is None else {f'met="{met}",model="m",slo="ttft"': 1.0}
    assert counts(metrics, "slo_requests_total") == expected


def test_without_targets_nothing_is_counted_by_them(metrics: Metrics) -> None:
    counters = RequestCounters(metrics, LatencyTargets())
    counters.add_model("m")
    counters.record_ttft(9, "m", "a")
    counters.record_itl(9, "m", "a")
    counters.record_no_first_token(RequestResult.SERVER_ERROR, 9, "m", "a")
    page = metrics.render().decode()
    assert "slo_requests_total{" not in page and "chairlift_slo_target_seconds{" not in page


def test_tenants_beyond_the_limit_share_a_label(metrics: Metrics) -> None:
    counters = RequestCounters(metrics, LatencyTargets())
    for number in range(MAX_TENANT_LABELS + 5):
        counters.record_finished(RequestResult.SUCCESS, "m", f"t{number}", 2)
    counters.record_finished(RequestResult.SUCCESS, "m", "t0", 2)
    tokens = counts(metrics, "tenant_tokens_total")
    assert len(tokens) == MAX_TENANT_LABELS + 1 and tokens['tenant="other"'] == 10 and tokens['tenant="t0"'] == 4
    assert counts(metrics, "model_requests_total") == {'model="m",result="success"': MAX_TENANT_LABELS + 6}
