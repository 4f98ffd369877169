"""AppSender and UrlSender: the same responses from an application of this process and from a server."""

import asyncio
import json
from typing import Any

import pytest

from chairlift.web.auth.principal import Principal
from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.batch_files.batch_run import BatchResponse
from chairlift.web.batch_files.senders import AppSender, UrlSender
from chairlift.web.request_info import RequestInfo, request_info
from chairlift.web.send_response import send_object
from support_router import Connection, ReceivedRequest, scripted
from support_router_app import served_replica
from support_server import MODEL, open_server, run
from support_services import fake_service


def line(path: str, **body: Any) -> BatchLine:
    return BatchLine(1, "a", path, json.dumps({"model": MODEL} | body).encode())


COMPLETION = line("/v1/completions", prompt="lift", max_tokens=4, seed=3)
EMBEDDING = line("/v1/embeddings", input=["lift", "rope"])
BAD = line("/v1/completions", prompt="")


def comparable(response: BatchResponse) -> tuple[int, Any]:
    assert response.request_id and response.body is not None
    body = {name: value for name, value in response.body.items() if name not in ("id", "created")}
    return response.status, body


def test_both_send_what_a_client_would_send() -> None:
    async def scenario() -> None:
        async with open_server(fake_service()) as server, served_replica() as url:
            local = AppSender(server.http._transport.app)  # type: ignore[attr-defined]
            async with UrlSender(url) as remote:
                for request, status in ((COMPLETION, 200), (EMBEDDING, 200), (BAD, 400)):
                    here, there = comparable(await local(request)), comparable(await remote(request))
                    assert here == there and here[0] == status
                many = await asyncio.gather(*(local(COMPLETION) for _ in range(20)))
                assert {json.dumps(comparable(each)) for each in many} == {
                    json.dumps(comparable(await local(COMPLETION)))
                }

    run(scenario())


def test_a_request_that_is_cancelled_leaves_the_engine() -> None:
    async def scenario() -> None:
        service = fake_service()
        async with open_server(service) as server:
            local = AppSender(server.http._transport.app)  # type: ignore[attr-defined]
            task = asyncio.create_task(local(line("/v1/completions", prompt="lift", max_tokens=400)))
            while (await server.http.get("/load")).json()["running_requests"] == 0:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(200):
                if (await server.http.get("/load")).json()["running_requests"] == 0:
                    break
                await asyncio.sleep(0.01)
            assert service.client.cache_state()["allocated_blocks"] == 0

    run(scenario())


def test_a_server_that_is_not_there_or_breaks_off_has_no_response() -> None:
    async def cut(connection: Connection, request: ReceivedRequest) -> None:
        connection.reset()

    async def scenario() -> None:
        async with UrlSender("http://127.0.0.1:9") as sender:
            missing = await sender(COMPLETION)
        async with scripted(cut) as replica, UrlSender(replica.url) as sender:
            broken = await sender(COMPLETION)
        for response in (missing, broken):
            assert response.status == 0 and "no response from http://127.0.0.1:" in response.body

    run(scenario())


def test_the_key_the_time_to_wait_and_a_body_that_is_no_json() -> None:
    async def full(connection: Connection, request: ReceivedRequest) -> None:
        assert request.headers["authorization"] == "Bearer secret"
        await connection.respond(b"busy", 429, retry_after="7", x_request_id="abc")

    async def scenario() -> None:
        async with scripted(full) as replica, UrlSender(replica.url, "secret") as sender:
            assert await sender(COMPLETION) == BatchResponse(429, "abc", "busy", 7.0)

    run(scenario())


def test_a_request_of_this_process_may_have_its_own_client() -> None:
    tenants: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        tenants.append(request_info(scope).authenticated.tenant)
        await send_object(send, {})

    sender = AppSender(app, lambda: RequestInfo(principal=Principal("alice")))
    assert asyncio.run(sender(COMPLETION)).status == 200 and tenants == ["alice"]
