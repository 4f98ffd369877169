"""The stand-in server records what it is sent, and knows one model."""

import asyncio
from typing import Any

import aiohttp

from record_clients.answer_formats import MODEL
from record_clients.stand_in_server import CONTEXT_TOKENS, run_stand_in

PATHS = ("/v1/models", f"/v1/models/{MODEL}", "/api/tags", "/api/ps", "/api/version")


def test_requests_are_recorded_in_order() -> None:
    async def run() -> list[dict[str, Any]]:
        async with run_stand_in([]) as server, aiohttp.ClientSession(server.url) as session:
            await session.post("/v1/chat/completions?beta=true", json={"messages": []}, headers={"X-Api-Key": "k"})
            await session.post("/v1/messages/count_tokens", json={"messages": []})
            await session.post("/unknown", data=b"no JSON")
            await session.get("/v1/models")
            return server.requests

    requests = asyncio.run(run())
    assert [(each["method"], each["path"], each["body"]) for each in requests] == [
        ("POST", "/v1/chat/completions?beta=true", {"messages": []}),
        ("POST", "/v1/messages/count_tokens", {"messages": []}),
        ("POST", "/unknown", "no JSON"),
        ("GET", "/v1/models", None),
    ]
    assert requests[0]["headers"]["x-api-key"] == "k"


def test_the_model_and_its_context_are_listed() -> None:
    async def run() -> tuple[list[int], Any, Any, int]:
        async with run_stand_in([]) as server, aiohttp.ClientSession(server.url) as session:
            statuses = [(await session.get(path)).status for path in PATHS]
            models = await (await session.get("/v1/models")).json()
            shown = await (await session.post("/api/show", json={"model": MODEL})).json()
            return statuses, models, shown, (await session.get("/v1/none")).status

    statuses, models, shown, missing = asyncio.run(run())
    assert statuses == [200] * len(PATHS) and missing == 404
    assert [(each["id"], each["max_model_len"]) for each in models["data"]] == [(MODEL, CONTEXT_TOKENS)]
    assert shown["model_info"]["recorded.context_length"] == CONTEXT_TOKENS
