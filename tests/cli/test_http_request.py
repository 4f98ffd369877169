"""send_request: method, path, key and fields arrive, and status and body come back."""

import asyncio
import json

import pytest

from chairlift.cli.http_request import send_request
from support_router import Connection, ReceivedRequest, scripted
from support_server import run


@pytest.mark.parametrize(("key", "method", "fields"), [("", "GET", None), ("k", "POST", {"a": 1})])
def test_a_request_and_its_response(key: str, method: str, fields: dict[str, int] | None) -> None:
    async def echo(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond({"method": request.method, "target": request.target}, 418)

    async def scenario() -> None:
        async with scripted(echo) as server:
            call = asyncio.to_thread(send_request, f"{server.url}/a/b", key, method, fields, timeout_seconds=5.0)
            status, body = await call
            (request,) = server.requests
        assert (status, json.loads(body)) == (418, {"method": method, "target": "/a/b"})
        assert request.headers.get("authorization") == (f"Bearer {key}" if key else None)
        assert (request.fields if fields else None) == fields

    run(scenario())
