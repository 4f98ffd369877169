"""PrometheusSignals: one number for each query; what is no number is missing, and its reason is logged once."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from chairlift.fleet.prometheus_signals import PrometheusSignals, parse_number
from chairlift.web.registry.json_client import JSONClient, JSONClientConfig, JSONResponse
from support_router import Connection, ReceivedRequest, scripted
from support_server import run
from support_shares import for_each

QUERIES = {"queue": 'sum(queue{pool="a"})', "gpu": "avg(gpu)"}


def answer(kind: str, result: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}}


def vector(*values: str) -> dict[str, Any]:
    return answer("vector", [{"metric": {}, "value": [1.0, value]} for value in values])


@pytest.mark.parametrize(("body", "number"), [
    (vector("7"), 7.0), (vector("0"), 0.0), (vector("1e3"), 1000.0), (answer("scalar", [1.0, "2.5"]), 2.5),
])  # fmt: skip
def test_an_answer_with_one_number(body: Any, number: float) -> None:
    assert parse_number(JSONResponse(200, body)) == (number, "")


@for_each(("status", "body", "reason"), [
    (200, vector(), "no series"), (200, vector("1", "2"), "2 series"), (200, vector("NaN"), "it is nan"),
    (200, vector("+Inf"), "it is inf"), (200, answer("matrix", []), "a matrix"),
    (200, answer("vector", [{}]), "not that"),
    (200, answer("scalar", []), "not that"), (200, answer("vector", 5), "not that"), (200, "text", "status 200: text"),
    (200, {"status": "success"}, "not that of Prometheus"), (400, {"error": "parse error"}, "parse error"),
    (200, vector("x"), "not that of Prometheus"),
])  # fmt: skip
def test_any_other_answer_is_a_missing_number(status: int, body: Any, reason: str) -> None:
    number, found = parse_number(JSONResponse(status, body))
    assert number is None and reason in found


def test_every_query_is_asked_and_one_that_fails_does_not_matter_to_the_others(caplog: Any) -> None:
    async def prometheus(connection: Connection, request: ReceivedRequest) -> None:
        (query,) = parse_qs(urlsplit(request.target).query)["query"]
        await connection.respond(vector("7") if query == QUERIES["queue"] else vector())

    async def scenario() -> None:
        async with scripted(prometheus) as server, JSONClient(JSONClientConfig(base_urls=(server.url,))) as client:
            signals = PrometheusSignals(client, QUERIES)
            for _ in range(2):
                read: Mapping[str, float | None] = await signals.read()
                assert read == {"queue": 7.0, "gpu": None}
        assert caplog.text.count("the query gpu has no number: it has no series") == 1

    run(scenario())


def test_a_server_that_is_down_is_missing_data() -> None:
    async def scenario() -> None:
        async with JSONClient(JSONClientConfig(base_urls=("http://127.0.0.1:9",))) as client:
            assert await PrometheusSignals(client, QUERIES).read() == {"queue": None, "gpu": None}

    run(scenario())
