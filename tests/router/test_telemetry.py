"""RouterTelemetry: what is counted, and by which labels."""

from typing import Any

import pytest

from chairlift.router.attempts.actions import RecordOutcome
from chairlift.router.discovery.base import SourceState, SourceStatus
from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.shared_state.base import SharedStateStatus
from chairlift.router.telemetry import MAX_VALUES, LatencyWindow, RouterTelemetry
from chairlift.web.access_log import AccessRecord
from chairlift.web.service.http_config import HttpConfig
from support_request_proxy import DONE, text_event
from support_router import HELLO, Connection, ReceivedRequest
from support_router_app import complete, routed
from support_server import run


def lines(telemetry: RouterTelemetry) -> list[str]:
    return telemetry.metrics.render().decode().splitlines()


def record(
    method: str = "GET", route: str = "", status: int = 200, code: str = "", *, sent: bool = False
) -> AccessRecord:
    return AccessRecord("id", method, route, status, 0.1, code, "", "", sent)


def test_responses_are_counted_by_known_names_and_rejections_by_code() -> None:
    telemetry = RouterTelemetry()
    telemetry.record_response(record("BREW", "", 404))
    telemetry.record_response(record("POST", "/v1/completions", 429, "overloaded"))
    telemetry.record_response(record("POST", "/v1/completions", 502, "replica_failed", sent=True))
    telemetry.record_response(record("POST", "/v1/completions", 499, "client_gone"))
    page = lines(telemetry)
    assert 'chairlift_http_requests_total{method="other",route="other",status="404"} 1.0' in page
    rejected = [line for line in page if line.startswith("chairlift_requests_rejected_total{")]
    assert rejected == ['chairlift_requests_rejected_total{code="overloaded"} 1.0']


def test_the_first_error_of_a_request_without_a_pool_changes_a_counter_at_zero() -> None:
    assert 'chairlift_model_requests_total{model="other",result="server_error"} 0.0' in lines(RouterTelemetry())


def test_codes_of_other_servers_are_one_time_series() -> None:
    telemetry = RouterTelemetry()
    for code in ("abort", "replica_failed", "a code of its own", "another one"):
        telemetry.record_finished(code, 0.5, 1)
    finished = [line for line in lines(telemetry) if line.startswith("chairlift_requests_finished_total{")]
    assert sorted(finished) == [
        f'chairlift_requests_finished_total{{outcome="{outcome}"}} {count}'
        for outcome, count in (("abort", 1.0), ("other", 2.0), ("replica_failed", 1.0))
    ]


def test_the_end_of_a_request_and_of_an_attempt() -> None:
    telemetry = RouterTelemetry()
    telemetry.record_finished("complete", 0.5, 2)
    telemetry.record_attempt(RecordOutcome(1, "http://a", "", HealthOutcome.FAULT, None, None))
    telemetry.update_gauges(3, 2, 1, is_ready=True)
    page = lines(telemetry)
    for line in (
        'chairlift_requests_finished_total{outcome="complete"} 1.0', "chairlift_router_request_attempts_sum 2.0",
        'chairlift_router_attempts_total{outcome="fault"} 1.0', "chairlift_requests_open 3.0",
        "chairlift_admission_waiting_requests 2.0", "chairlift_ready 1.0",
        "chairlift_router_held_requests 1.0",
    ):  # fmt: skip
        assert line in page, line


def test_counts_of_sources_and_shared_state_are_not_added_twice() -> None:
    telemetry = RouterTelemetry()
    for num_failures in (1, 1, 4):
        telemetry.update_sources([SourceStatus(
            name="s", state=SourceState.UP, since=0.0, num_endpoints=5, num_updates=1, num_failures=num_failures,
            last_error="",
        )])  # fmt: skip
        telemetry.update_shared_state(SharedStateStatus(backend="redis", is_connected=False, num_outages=2))
    page = lines(telemetry)
    for line in (
        'chairlift_router_source_up{source="s"} 1.0', 'chairlift_router_source_replicas{source="s"} 5.0',
        'chairlift_router_source_failures_total{source="s"} 4.0', "chairlift_router_shared_state_up 0.0",
        "chairlift_router_shared_state_outages_total 2.0",
    ):  # fmt: skip
        assert line in page, line


def test_streams_count_for_the_latency_targets_by_model_and_tenant() -> None:
    async def stream(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        for data in (text_event(1), text_event(2), text_event(3), DONE):
            await connection.piece(data)
        await connection.end()

    async def scenario() -> None:
        http = HttpConfig(slo_ttft_ms=60_000, slo_itl_ms=60_000)
        async with routed(stream, http=http) as fleet:
            assert (await fleet.post({**HELLO, "stream": True})).status_code == 200
            page = fleet.running.router.telemetry.metrics.render().decode()
        for slo in ("ttft", "itl"):
            assert f'chairlift_slo_requests_total{{met="true",model="m",slo="{slo}"}} 1.0' in page, page
        assert 'chairlift_model_requests_total{model="m",result="success"} 1.0' in page
        assert 'chairlift_tenant_slo_requests_total{met="true",slo="itl",tenant="none"} 1.0' in page

    run(scenario())


def test_whole_responses_and_errors_of_clients_count_for_no_target() -> None:
    async def scenario() -> None:
        async with routed(complete, http=HttpConfig(slo_ttft_ms=0.001, slo_itl_ms=0.001)) as fleet:
            assert (await fleet.post(HELLO)).status_code == 200
            page = fleet.running.router.telemetry.metrics.render().decode()
        assert "chairlift_tenant_slo_requests_total{" not in page
        assert 'result="success"} 1.0' in page

    run(scenario())


@pytest.mark.parametrize(
    ("status", "body", "outcome", "result"),
    [
        (400, {"error": {"message": "bad", "code": "invalid_request"}}, "invalid_request", "client_error"),
        (404, {"error": {"message": "what", "code": "a_code_of_another_server"}}, "other", "client_error"),
        (422, {"detail": []}, "other", "client_error"),
    ],
)
def test_an_error_of_a_replica_that_is_passed_on_is_no_success(
    status: int, body: dict[str, Any], outcome: str, result: str
) -> None:
    async def reject(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond(body, status)

    async def scenario() -> None:
        async with routed(reject) as fleet:
            assert (await fleet.post(HELLO)).status_code == status
            page = fleet.running.router.telemetry.metrics.render().decode()
        assert f'chairlift_requests_finished_total{{outcome="{outcome}"}} 1.0' in page
        assert f'chairlift_model_requests_total{{model="m",result="{result}"}} 1.0' in page
        assert 'result="success"} 1.0' not in page

    run(scenario())


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.1, 1.0), (0.5, 5.0), (0.51, 6.0), (1.0, 10.0)])
def test_a_quantile_is_one_of_the_values(share: float, expected: float) -> None:
    window = LatencyWindow()
    for value in (3, 1, 2, 10, 9, 8, 7, 6, 5, 4):
        window.add(float(value), 100.0)
    assert window.quantile(share, 101.0) == expected


def test_values_of_more_than_a_minute_ago_do_not_count() -> None:
    window = LatencyWindow()
    assert window.quantile(0.5, 0.0) is None
    window.add(9.0, 0.0)
    window.add(1.0, 30.0)
    assert window.quantile(1.0, 59.0) == 9.0
    assert window.quantile(1.0, 60.0) == 1.0
    assert window.quantile(1.0, 90.0) is None


def test_only_the_newest_values_of_a_full_window_count() -> None:
    window = LatencyWindow()
    for number in range(MAX_VALUES + 1):
        window.add(float(number), 0.0)
    assert window.quantile(0.0, 1.0) == 1.0
