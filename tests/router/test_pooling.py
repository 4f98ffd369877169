"""Embeddings, scores and rankings through a router: the responses of a replica, failover, and limits."""

import asyncio
from typing import Any

import pytest

from chairlift.router.prompt_prefix_and_length import count_prompt_tokens, pooled_fields, prompt_prefix
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.tenant_limits import TenantLimits
from support_router import Connection, ReceivedRequest
from support_router_app import complete, replica_and_router, routed
from support_server import MODEL, run
from support_shares import for_each

EMBEDDINGS, SCORE, RERANK = "/v1/embeddings", "/v1/score", "/v1/rerank"
BODIES: dict[str, dict[str, Any]] = {
    EMBEDDINGS: {"model": MODEL, "input": ["lift", "rope"]},
    SCORE: {"model": MODEL, "text_1": "lift", "text_2": ["rope", "lift"]},
    RERANK: {"model": MODEL, "query": "lift", "documents": ["rope", {"text": "lift"}]},
}


@pytest.mark.share(2)
@pytest.mark.parametrize("path", BODIES)
def test_a_response_through_a_router_is_that_of_a_replica(path: str) -> None:
    async def scenario() -> None:
        async with replica_and_router() as clients:
            direct, through = [
                await http.post(path, json=BODIES[path], headers={"x-request-id": "same"}) for http in clients
            ]
            assert direct.status_code == through.status_code == 200
            assert without_time(direct.json()) == without_time(through.json())
            assert "x-ignored-parameters" not in through.headers  # the router adds no field of its own

    run(scenario())


def without_time(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "created"}


@pytest.mark.share(2)
@pytest.mark.parametrize("path", BODIES)
def test_a_request_whose_replica_is_lost_is_repeated_on_another_one(path: str) -> None:
    async def lost(connection: Connection, request: ReceivedRequest) -> None:
        connection.reset()

    async def answer(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond({"object": "list", "data": [], "model": "m"})

    async def scenario() -> None:
        async with routed(lost, answer) as fleet:
            responses = [await fleet.post({**BODIES[path], "model": "m"}, path) for _ in range(4)]
            assert [response.status_code for response in responses] == [200] * 4
            assert fleet.replicas[0].requests, "the lost replica was asked"

    run(scenario())


def test_tokens_of_texts_count_for_the_limit_of_a_tenant() -> None:
    async def scenario() -> None:
        http = HttpConfig(tenant=TenantLimits(tenant_tokens_per_minute=100))
        async with routed(complete, http=http) as fleet:
            responses = await asyncio.gather(
                *(fleet.post({"model": "m", "input": ["word " * 40, "word " * 40]}, EMBEDDINGS) for _ in range(3))
            )
            assert sorted(response.status_code for response in responses) == [200, 429, 429]

    run(scenario())


@for_each(
    ("body", "tokens"),
    [
        ({"input": "a" * 39}, 10), ({"input": ["a" * 39, "a" * 39]}, 20), ({"input": [1, 2, 3]}, 3),
        ({"input": [[1, 2, 3], [4]]}, 4), ({"query": "a" * 39, "documents": ["a" * 39, {"text": "a" * 39}]}, 30),
        ({"text_1": "a" * 39, "text_2": ["a" * 39]}, 20), ({"input": 5}, 0), ({"documents": [None]}, 0),
    ],
)  # fmt: skip
def test_the_estimate_counts_all_texts(body: dict[str, Any], tokens: int) -> None:
    hidden = {"prompt": "a", "messages": []}  # fields that the replica does not read
    for fields in (body, body | hidden):
        pooled = pooled_fields(fields | {"model": "m", "cache_salt": "s"})
        assert count_prompt_tokens(pooled) == prompt_prefix(pooled, model="m").num_tokens == tokens
        assert pooled["model"] == "m" and pooled["cache_salt"] == "s"


def test_a_tenant_pays_for_the_tokens_that_the_replica_reports() -> None:
    async def answer(connection: Connection, request: ReceivedRequest) -> None:
        usage = {"prompt_tokens": 5000, "total_tokens": 5000}
        await connection.respond({"object": "list", "data": [], "model": "m", "usage": usage})

    async def scenario() -> None:
        http = HttpConfig(tenant=TenantLimits(tenant_tokens_per_minute=100))
        async with routed(answer, http=http) as fleet:
            statuses = [(await fleet.post({"model": "m", "input": "a"}, EMBEDDINGS)).status_code for _ in range(3)]
            assert statuses == [200, 429, 429]

    run(scenario())
