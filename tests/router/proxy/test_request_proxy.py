"""Request proxy: in a served router, responses of scripted replicas pass, failures are retried, errors reported."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from chairlift.router.attempts.attempt import AttemptLimits
from support_router import CHAT, HELLO, Connection, ReceivedRequest, RunningRouter, running_router, scripted
from support_server import run

DATA = [b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % number for number in range(3)]
DONE = b"data: [DONE]\n\n"
STREAM = {**HELLO, "stream": True}


async def whole(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"answer": request.fields["messages"]}, openai_organization="o")


async def stream(connection: Connection, request: ReceivedRequest) -> None:
    await connection.stream_head(cache_control="no-cache")
    for piece in (*DATA, DONE):
        await connection.piece(piece)
    await connection.end()


async def refuse(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"error": {"message": "full"}}, 429, retry_after="7")


async def fail(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"error": {"message": "broken"}}, 500)


async def reset(connection: Connection, request: ReceivedRequest) -> None:
    connection.reset()


async def cut(connection: Connection, request: ReceivedRequest) -> None:
    await connection.stream_head()
    await connection.piece(DATA[0])
    connection.reset()


async def hang(connection: Connection, request: ReceivedRequest) -> None:
    await asyncio.Event().wait()


async def invalid(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"error": {"message": "bad", "code": "x"}}, 422)


async def post(router: RunningRouter, body: Any = HELLO, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=router.url, timeout=10) as http:
        response = await http.post(CHAT, json=body, headers={n.replace("_", "-"): v for n, v in headers.items()})
    assert not router.router.open_proxies
    assert all(each.open_requests == 0 for each in router.router.replicas.statuses(0.0))
    assert router.router.admission.open_requests == 0
    return response


def test_a_response_passes_with_its_headers_and_the_request_with_the_clients() -> None:
    async def scenario() -> None:
        async with scripted(whole) as replica, running_router([replica.url]) as router:
            response = await post(router, x_extra="1", authorization="Bearer client", x_request_id="mine")
            assert response.status_code == 200 and response.json() == {"answer": HELLO["messages"]}
            assert response.headers["openai-organization"] == "o" and response.headers["x-request-id"] == "mine"
            assert response.headers["content-length"] == str(len(response.content))
            (request,) = replica.requests
            assert request.fields == HELLO and request.target == CHAT
            assert request.headers["x-extra"] == "1" and request.headers["x-request-id"] == "mine"
            assert "authorization" not in request.headers

    run(scenario())


def test_a_stream_of_another_server_passes_byte_for_byte() -> None:
    async def scenario() -> None:
        async with scripted(stream) as replica, running_router([replica.url]) as router:
            response = await post(router, STREAM)
            assert response.content == b"".join((*DATA, DONE))
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert response.headers["cache-control"] == "no-cache"

    run(scenario())


@pytest.mark.share(1)
@pytest.mark.parametrize("first", [refuse, fail, reset], ids=["full", "500", "reset"])
def test_a_request_that_a_replica_does_not_serve_goes_to_another_one(first: Any) -> None:
    async def scenario() -> None:
        async with scripted(first) as one, scripted(stream) as two, running_router([one.url, two.url]) as router:
            for _ in range(2):
                assert (await post(router, STREAM)).content == b"".join((*DATA, DONE))
            assert len(one.requests) >= 1 and len(two.requests) == 2
            assert {each.headers["x-request-id"] for each in one.requests} <= {
                each.headers["x-request-id"] for each in two.requests
            }

    run(scenario())


def test_a_refused_connection_goes_to_another_replica() -> None:
    async def scenario() -> None:
        async with scripted(whole) as one, running_router(["http://127.0.0.1:1", one.url]) as router:
            assert (await post(router)).status_code == 200
            assert (await post(router)).status_code == 200

    run(scenario())


def test_a_connection_that_its_replica_has_closed_is_no_fault() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        if connection.port in ports:
            connection.close()
        else:
            ports.append(connection.port)
            await connection.respond({"n": len(ports)})

    async def scenario() -> None:
        async with scripted(script) as one, running_router([one.url]) as router:
            assert [(await post(router)).json() for _ in range(2)] == [{"n": 1}, {"n": 2}]
            page = router.router.telemetry.metrics.render()
            assert b'router_attempts_total{outcome="success"} 2' in page and b'outcome="fault"' not in page
            assert len(one.requests) == 3

    ports: list[int] = []
    run(scenario())


@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("method", "head", "length"),
    [("HEAD", b"200 OK\r\ncontent-length: 17", "17"), ("HEAD", b"200 OK\r\ntransfer-encoding: chunked", None),
     ("HEAD", b"404 None\r\ncontent-length: 17", "17"), ("GET", b"304 Same\r\ncontent-length: 17", None),
     ("GET", b"204 None", None), ("GET", b"200 OK\r\ncontent-length: 0", "0")],
)  # fmt: skip
def test_responses_without_a_body_pass(method: str, head: bytes, length: str | None) -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        connection.write(b"HTTP/1.1 " + head + b"\r\nx-own: 1\r\n\r\n")

    async def scenario() -> None:
        async with (
            scripted(script) as one,
            running_router([one.url]) as router,
            httpx.AsyncClient(base_url=router.url, timeout=10) as http,
        ):
            for _ in range(2):  # the second one on the same connection
                response = await http.request(method, "/v1/later")
                assert response.status_code == int(head[:3]) and response.headers["x-own"] == "1"
                assert response.content == b"" and response.headers.get("content-length") == length
                assert "content-type" not in response.headers

    run(scenario())


def test_a_client_error_passes_and_is_not_retried() -> None:
    async def scenario() -> None:
        async with scripted(invalid) as one, scripted(invalid) as two, running_router([one.url, two.url]) as router:
            response = await post(router)
            assert response.status_code == 422 and response.json()["error"]["code"] == "x"
            assert len(one.requests) + len(two.requests) == 1

    run(scenario())


def test_full_replicas_give_429_with_the_smallest_time() -> None:
    async def scenario() -> None:
        async with scripted(refuse) as one, running_router([one.url]) as router:
            response = await post(router)
            assert response.status_code == 429 and response.headers["retry-after"] == "7"

    run(scenario())


def test_a_stream_that_cannot_be_resumed_ends_with_an_error_event_and_without_done() -> None:
    async def scenario() -> None:
        async with scripted(cut) as one, scripted(stream) as two, running_router([one.url, two.url]) as router:
            contents = [(await post(router, STREAM)).content for _ in range(2)]
            broken = next(each for each in contents if DONE not in each)
            assert broken.startswith(DATA[0] + b"event: error\ndata: ")
            error = json.loads(broken.partition(b"event: error\ndata: ")[2])["error"]
            assert error["code"] == "resume_failed" and "cannot be resumed" in error["message"]

    run(scenario())


def test_replicas_that_all_fail_give_an_error_with_its_reason() -> None:
    async def scenario() -> None:
        async with scripted(fail) as one, running_router([one.url]) as router:
            response = await post(router)
            assert response.status_code == 502 and response.json()["error"]["code"] == "replica_failed"

    run(scenario())


def test_a_late_first_token_is_answered_by_another_replica() -> None:
    async def scenario() -> None:
        limits = AttemptLimits(first_token_timeout_seconds=0.05)
        async with (
            scripted(hang) as one,
            scripted(stream) as two,
            running_router([one.url, two.url], attempts=limits) as router,
        ):
            for _ in range(2):
                assert (await post(router, STREAM)).content.endswith(DONE)

    run(scenario())


def test_a_deadline_ends_a_request_with_504() -> None:
    limits = AttemptLimits(deadline_grace_seconds=0.02)

    async def scenario() -> None:
        async with scripted(hang) as one, running_router([one.url], attempts=limits) as router:
            response = await post(router, x_request_timeout_ms="50")
            assert response.status_code == 504
            assert 0 < int(one.requests[0].headers["x-request-timeout-ms"]) <= 50

    run(scenario())


def test_the_error_of_a_replica_whose_request_ran_out_of_time_passes() -> None:
    async def report_timeout(connection: Connection, request: ReceivedRequest) -> None:
        await asyncio.sleep(int(request.headers["x-request-timeout-ms"]) / 1000)
        await connection.respond({"error": {"message": "late", "code": "timeout"}}, 408)

    async def scenario() -> None:
        async with scripted(report_timeout) as one, running_router([one.url]) as router:
            response = await post(router, x_request_timeout_ms="20")
            assert response.status_code == 408 and response.json()["error"]["code"] == "timeout"

    run(scenario())


def test_a_client_that_leaves_aborts_the_attempt() -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def watched(connection: Connection, request: ReceivedRequest) -> None:
            await connection.stream_head()
            try:
                while True:
                    await connection.piece(DATA[0])
                    await asyncio.sleep(0.002)
            finally:
                gone.set()

        async with scripted(watched) as one, running_router([one.url]) as router:
            async with (
                httpx.AsyncClient(base_url=router.url) as http,
                http.stream("POST", CHAT, json=STREAM) as response,
            ):
                async for _ in response.aiter_bytes():
                    break
            await asyncio.wait_for(gone.wait(), 10)
            while router.router.open_proxies:
                await asyncio.sleep(0.001)
            assert router.router.replicas.statuses(0.0)[0].open_requests == 0

    run(scenario())


def test_an_abort_of_the_router_ends_a_stream_with_an_error_event() -> None:
    async def scenario() -> None:
        async def begun(connection: Connection, request: ReceivedRequest) -> None:
            await connection.stream_head()
            await connection.piece(DATA[0])
            await asyncio.Event().wait()

        async with scripted(begun) as one, running_router([one.url]) as router:
            asking = asyncio.create_task(post(router, STREAM))
            while not router.router.open_proxies:
                await asyncio.sleep(0.001)
            while router.router.admission.waiting_requests:
                await asyncio.sleep(0.001)
            assert router.router.abort_all() == 1
            content = (await asking).content
            assert content.startswith(DATA[0]) and b'"code":"draining"' in content and DONE not in content

    run(scenario())


def test_a_client_that_does_not_read_pauses_the_replica_and_loses_nothing() -> None:
    async def scenario() -> None:
        piece = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"x" * 20_000)
        number = 1000

        async def much(connection: Connection, request: ReceivedRequest) -> None:
            await connection.stream_head()
            for _ in range(number):
                await connection.piece(piece)
            await connection.piece(DONE)
            await connection.end()

        limits = AttemptLimits(inter_token_timeout_seconds=0.5)
        async with scripted(much) as one, running_router([one.url], attempts=limits) as router:
            async with (
                httpx.AsyncClient(base_url=router.url) as http,
                http.stream("POST", CHAT, json=STREAM) as response,
            ):
                size = 0
                async for data in response.aiter_bytes():
                    if not size:
                        await asyncio.sleep(1.0)
                    size += len(data)
            assert size == number * len(piece) + len(DONE)

    run(scenario())


@pytest.mark.parametrize("body", [HELLO, STREAM], ids=["whole", "one event"])
def test_a_response_of_which_the_client_can_read_nothing_yet_waits_for_no_client(body: Any) -> None:
    pieces = [b"data: ", *[b"x" * 65_536] * 10, b"\n\n" + DONE]

    async def large(connection: Connection, request: ReceivedRequest) -> None:
        await (connection.stream_head if body is STREAM else connection.head)()
        for piece in pieces:
            await connection.piece(piece)
        await connection.end()

    async def scenario() -> None:
        async with scripted(large) as one, running_router([one.url]) as router:
            assert (await post(router, body)).content == b"".join(pieces)

    run(scenario())
