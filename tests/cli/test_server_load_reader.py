"""server_load_reader.py: rates come from counters, and a server that is down or strange is no traceback."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from chairlift.cli.server_load_reader import (
    FleetAccessDenied,
    FleetReader,
    FleetReading,
    FleetRow,
    parse_metrics,
    row_of_replica,
    with_rates,
)
from chairlift.core.errors import ConfigError
from chairlift.protocol.response_schemas import LOAD
from support_fleet_server import FleetServer, open_fleet_server

REPLICA = {"replica_id": "http://r1", "state": "healthy", "reason": "2 successes", "kind": "chairlift", "weight": 2,
           "open_requests": 3, "num_attempts": 17, "load": {"running_requests": 2, "waiting_requests": 1,
           "kv_usage_ratio": 0.25}}  # fmt: skip


@pytest.fixture
def server() -> Iterator[FleetServer]:
    with open_fleet_server() as server:
        yield server


def reading_of(at_seconds: float, *rows: FleetRow, **metrics: float) -> FleetReading:
    return FleetReading(url="u", at_seconds=at_seconds, service="replica", rows=rows, metrics=metrics)


def test_the_metrics_of_prometheus_are_summed_over_their_labels() -> None:
    text = (
        "# HELP chairlift_output_tokens_total x\n# TYPE chairlift_output_tokens_total counter\n"
        'chairlift_output_tokens_total 12.0\nchairlift_steps{a="b c} 9",d="e"} 1\nchairlift_steps{a="c"} 2e3\n'
        "other_metric 5\nchairlift_broken x\nchairlift_ready NaN\nchairlift_gap +Inf\n"
    )
    sums = parse_metrics(text)
    assert (sums["output_tokens"], sums["steps"]) == (12.0, 2001.0)
    assert set(sums) == {"output_tokens", "steps"}


def test_a_replica_of_a_router_is_read() -> None:
    assert row_of_replica(REPLICA) == FleetRow(
        replica="http://r1", state="healthy", reason="2 successes", kind="chairlift", weight=2, open_requests=3,
        attempts=17, running=2, waiting=1, kv_usage_ratio=0.25,
    )  # fmt: skip
    assert row_of_replica({"load": None, "weight": True}) == FleetRow(replica="?", state="unknown")
    for value in (float("nan"), float("inf"), 10**400, "8", [8]):  # JSON of Python has them
        assert row_of_replica({"weight": value}) == FleetRow(replica="?", state="unknown")


def test_the_fields_of_a_replica_are_those_that_a_server_reports() -> None:
    names = {"running_requests", "waiting_requests", "output_tokens", "prompt_tokens", "cached_tokens", "total_blocks",
             "free_blocks"}  # fmt: skip
    assert names <= set(LOAD["properties"])
    row = row_of_replica({"replica_id": "u", "state": "ready", "load": dict.fromkeys(names, 8) | {"free_blocks": 2}})
    assert (row.running, row.waiting, row.output_tokens, row.cached_tokens) == (8, 8, 8, 8)
    assert row.kv_usage_ratio == 0.75


def test_rates_are_those_since_the_former_reading() -> None:
    row = FleetRow(replica="r", state="ready", output_tokens=100, prompt_tokens=1000, cached_tokens=900)
    first = with_rates(reading_of(10, row, output_tokens=50), None)
    assert (first.rows[0].tokens_per_second, first.tokens_per_second) == (None, None)
    assert first.rows[0].cache_hit_ratio == 0.9
    later = replace(row, output_tokens=160, prompt_tokens=1100, cached_tokens=925)
    second = with_rates(reading_of(12, later, output_tokens=110), first)
    assert (second.rows[0].tokens_per_second, second.tokens_per_second) == (30, 30)
    assert second.rows[0].cache_hit_ratio == 0.25
    idle = with_rates(reading_of(14, later, output_tokens=110), second)
    assert (idle.rows[0].tokens_per_second, idle.rows[0].cache_hit_ratio) == (0, 925 / 1100)


def test_a_restarted_or_new_replica_has_no_rate_yet() -> None:
    row = FleetRow(replica="r", state="ready", output_tokens=100)
    first = with_rates(reading_of(10, row), None)
    rows = (replace(row, output_tokens=3), replace(row, replica="new"))
    assert [each.tokens_per_second for each in with_rates(reading_of(11, *rows), first).rows] == [None, None]


@pytest.mark.parametrize("body", [[REPLICA], {"replicas": [REPLICA]}])
def test_a_router_is_recognized_by_its_list_of_replicas(server: FleetServer, body: object) -> None:
    server.routes = {"/admin/replicas": body, "/metrics": "chairlift_router_attempts_total 17\nchairlift_ready 1\n"}
    reading = FleetReader(server.url).read()
    assert (reading.service, reading.rows[0].replica) == ("router", "http://r1")
    assert reading.as_json()["metrics"] == {"router_attempts": 17.0}
    assert json.dumps(reading.as_json())


def test_a_replica_is_read_by_its_load(server: FleetServer) -> None:
    server.routes = {"/load": {"state": "ready", "running_requests": 4}}
    reading = FleetReader(server.url + "/v1/").read()
    assert (reading.service, reading.metrics) == ("replica", {})
    assert reading.rows == (FleetRow(replica=server.url, state="ready", running=4),)


@pytest.mark.parametrize(
    ("routes", "part"),
    [
        ({}, "/load has status 404"),
        ({"/load": "<html>"}, "/load is no JSON; another program may answer there"),
        ({"/load": "[" * 100_000}, "/load is no JSON"),
        ({"/load": [1]}, "/load is no JSON object"),
        ({"/admin/replicas": {"x": 1}}, "/admin/replicas is no JSON list"),
        ({"/admin/replicas": ["x"]}, "/admin/replicas is no JSON list"),
    ],
)
def test_a_server_with_other_answers_is_down(server: FleetServer, routes: dict[str, object], part: str) -> None:
    server.routes = routes
    reading = FleetReader(server.url).read()
    assert reading.service == reading.rows[0].state == "down"
    assert part in reading.error


def test_a_server_that_stops_and_returns_keeps_its_rates(server: FleetServer) -> None:
    server.routes = {"/load": {"state": "ready", "output_tokens": 10}}
    reader = FleetReader(server.url)
    reader.read()
    server.routes = {}
    assert reader.read().service == "down"
    server.routes = {"/load": {"state": "ready", "output_tokens": 30}}
    rate = reader.read().rows[0].tokens_per_second
    assert rate is not None and rate > 0
    server.stop()
    assert "refused" in reader.read().error


def test_the_admin_key_is_used_first_and_the_other_where_it_is_rejected(server: FleetServer) -> None:
    server.routes = {"/admin/replicas": [], "/metrics": "chairlift_output_tokens_total 5\n"}
    server.keys = {"/admin/replicas": "boss", "/metrics": "user"}
    reading = FleetReader(server.url, "user", "boss").read()
    assert (reading.service, reading.metrics) == ("router", {"output_tokens": 5.0})


def test_a_rejected_key_is_an_error_that_names_the_variables(server: FleetServer) -> None:
    server.routes, server.keys = {"/load": {}}, {"/load": "k", "/admin/replicas": "k"}
    with pytest.raises(FleetAccessDenied, match="status 401; set CHAIRLIFT_ADMIN_KEY or CHAIRLIFT_API_KEY") as caught:
        FleetReader(server.url, "wrong-key").read()
    assert "wrong-key" not in caught.value.message


@pytest.mark.parametrize("url", ["localhost:8000", "http://h:0", "http://u:secret@h", "http://h/?x=secret"])
def test_a_url_is_checked_as_that_of_doctor(url: str) -> None:
    with pytest.raises(ConfigError, match="--url") as caught:
        FleetReader(url)
    assert "secret" not in caught.value.message
