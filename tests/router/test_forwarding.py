"""ForwardRoute: every other path is passed on, whatever its method and type; nothing unsafe is sent twice."""

import asyncio
from typing import Any

import httpx
import pytest

from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.endpoint import Endpoint
from chairlift.router.forwarding import is_admin_path
from chairlift.router.model_aliases_and_canaries import ModelRoutes
from chairlift.web.service.http_config import HttpConfig
from support_router import Connection, ReceivedRequest, scripted
from support_router_app import echo, routed
from support_server import run

EMBEDDINGS = "/v1/other"


async def reset(connection: Connection, request: ReceivedRequest) -> None:
    connection.reset()


async def full(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"error": {"message": "full"}}, 429, retry_after="3")


async def fail(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"error": {"message": "broken"}}, 500)


@pytest.mark.share(2)
@pytest.mark.parametrize(("method", "target", "content", "kind"), [
    ("POST", "/v1/audio/transcriptions", b"\x00\xff--x", "multipart/form-data; boundary=x"),
    ("POST", "/v1/other?a=%20b&c=d", b'{"input": "x"}', "application/json"),
    ("POST", "/score", b"plain", "text/plain"), ("POST", "/score", b"", None),
    ("PUT", "/v1/uploads/a%2Fb", b"x", "application/octet-stream"), ("PATCH", "/v1/x", b"[1]", "application/json"),
    ("DELETE", "/v1/uploads/1", b"", None), ("GET", "/v1/files?limit=2", b"", None), ("OPTIONS", "/v1/x", b"", None),
])  # fmt: skip
def test_a_request_passes_with_its_method_target_type_and_body(
    method: str, target: str, content: bytes, kind: str | None
) -> None:
    async def scenario() -> None:
        async with routed(echo) as fleet:
            headers = {} if kind is None else {"content-type": kind}
            response = await fleet.http.request(method, target, content=content, headers=headers)
            assert response.status_code == 200, response.text
            expected = {"method": method, "target": target, "body": content.decode("latin-1"), "type": kind}
            assert response.json() == expected
            assert response.headers["x-request-id"] == fleet.received()[0].headers["x-request-id"]

    run(scenario())


def test_head_has_the_length_of_the_body_that_is_not_sent() -> None:
    async def head(connection: Connection, request: ReceivedRequest) -> None:
        connection._writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 77\r\ncontent-type: text/x\r\n\r\n")

    async def scenario() -> None:
        async with routed(head) as fleet:
            response = await fleet.http.head("/v1/uploads/1")
            assert (response.status_code, response.content) == (200, b"")
            assert (response.headers["content-length"], response.headers["content-type"]) == ("77", "text/x")
            assert fleet.received()[0].method == "HEAD"

    run(scenario())


def test_a_response_without_a_body_has_no_length_and_no_type() -> None:
    async def no_content(connection: Connection, request: ReceivedRequest) -> None:
        connection._writer.write(b"HTTP/1.1 204 No Content\r\nx-a: b\r\n\r\n")

    async def scenario() -> None:
        async with routed(no_content) as fleet:
            response = await fleet.http.delete("/v1/uploads/1")
            assert (response.status_code, response.content, response.headers["x-a"]) == (204, b"", "b")
            assert not {"content-length", "content-type"} & response.headers.keys()

    run(scenario())


def test_a_redirect_and_an_error_pass_unchanged() -> None:
    async def redirect(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond({"to": "b"}, 307, location="/v1/b")

    async def teapot(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond({"error": "tea"}, 418)

    async def scenario() -> None:
        for script, status in ((redirect, 307), (teapot, 418)):
            async with routed(script) as fleet:
                response = await fleet.http.post("/v1/a", json={})
                assert response.status_code == status and len(fleet.received()) == 1
                assert response.headers.get("location") == ("/v1/b" if status == 307 else None)

    run(scenario())


def test_a_streamed_response_passes_as_it_comes() -> None:
    events = asyncio.Queue[bytes]()

    async def stream(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        for _ in range(3):
            await connection.piece(await events.get())
        await connection.end()

    async def scenario() -> None:
        events.put_nowait(b"event: a\ndata: 1\n\n")
        async with routed(stream) as fleet, fleet.http.stream("POST", "/v1/other", json={"stream": True}) as got:
            pieces = got.aiter_bytes()
            assert await anext(pieces) == b"event: a\ndata: 1\n\n"
            events.put_nowait(b"ha")  # an event may come in pieces, and no [DONE] ends the stream
            assert await anext(pieces) == b"ha"
            events.put_nowait(b"lf\n\n")
            assert [piece async for piece in pieces] == [b"lf\n\n"]
            assert got.headers["content-type"].startswith("text/event-stream")

    run(scenario())


@pytest.mark.share(3)
@pytest.mark.parametrize("path", [
    "/admin/state", "/admin/requests/1", "/admin", "/admin/", "//admin/state", "/v1/../admin/state",
    "/v1/%2e%2e/admin/state", "/./admin/state", "/%61dmin/state", "/a//../admin", "*", "*@{other}/v1/x", "*:1@{other}",
])  # fmt: skip
def test_administration_and_other_hosts_are_never_passed_on(path: str) -> None:
    async def scenario() -> None:
        async with scripted(echo) as other, routed(echo) as fleet:
            target = path.replace("{other}", other.url.removeprefix("http://")).encode()
            host, port = fleet.running.url.removeprefix("http://").split(":")
            for method in (b"GET", b"POST", b"DELETE"):
                reader, writer = await asyncio.open_connection(host, int(port))  # httpx would clean the path
                writer.write(b"%s %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n" % (method, target))
                head = await reader.readuntil(b"\r\n\r\n")
                writer.close()
                assert head.startswith((b"HTTP/1.1 404", b"HTTP/1.1 405")), (path, head)
            assert fleet.received() == other.requests == []

    run(scenario())


def test_a_path_that_only_looks_like_administration_is_passed_on() -> None:
    assert [is_admin_path(path) for path in ("/administer", "/v1/admin/x", "/admin.html", "/", "/v1/x")] == [False] * 5


@pytest.mark.share(2)
@pytest.mark.parametrize("script", [reset, fail])
@pytest.mark.parametrize(("method", "path", "num_requests"), [
    ("POST", EMBEDDINGS, 1), ("PUT", EMBEDDINGS, 1), ("PATCH", EMBEDDINGS, 1), ("POST", "/tokenize", 3),
    ("POST", "/detokenize", 3), ("GET", EMBEDDINGS, 3),
])  # fmt: skip
def test_what_may_have_changed_something_is_not_sent_twice(
    script: Any, method: str, path: str, num_requests: int
) -> None:
    async def scenario() -> None:
        async with routed(script, script, script) as fleet:
            response = await fleet.http.request(method, path, content=b"{}" if method != "GET" else None)
            assert response.status_code == 502 and response.json()["error"]["code"] == "replica_failed"
            by_replica = [len(replica.requests) for replica in fleet.replicas]
            replicas_used = sum(number > 0 for number in by_replica)
            assert replicas_used == num_requests, by_replica

    run(scenario())


def test_what_no_replica_has_begun_goes_to_another_one() -> None:
    async def scenario() -> None:
        async with routed(full, full, echo) as fleet:
            for _ in range(3):
                assert (await fleet.http.post(EMBEDDINGS, json={"a": 1})).status_code == 200
        async with routed(echo) as fleet:
            router = fleet.running.router
            dead = "http://127.0.0.1:9"
            endpoints = [Endpoint.parse(url, models=("m",)) for url in (dead, fleet.replicas[0].url)]
            router.replicas.update(endpoints, router.clock.now())
            for _ in range(3):
                assert (await fleet.http.post(EMBEDDINGS, json={})).status_code == 200
            assert len(fleet.received()) == 3

    run(scenario())


def test_all_full_is_429_with_the_smallest_time() -> None:
    async def scenario() -> None:
        async with routed(full, full) as fleet:
            response = await fleet.http.post(EMBEDDINGS, json={})
            assert response.status_code == 429 and response.headers["retry-after"] == "3"

    run(scenario())


def test_a_model_chooses_the_pool_and_an_alias_is_resolved() -> None:
    async def scenario() -> None:
        async with routed(echo, routes=ModelRoutes.parse(["alias=m"])) as fleet:
            response = await fleet.http.post(EMBEDDINGS, json={"model": "alias", "input": "x"})
            assert httpx.Response(200, content=response.json()["body"]).json()["model"] == "m"
            for body in ({"model": "m"}, {"model": 5}, {}):
                response = await fleet.http.post(EMBEDDINGS, json=body)
                assert httpx.Response(200, content=response.json()["body"]).json() == body
            unknown = await fleet.http.post(EMBEDDINGS, json={"model": "other"})
            assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"

    run(scenario())


def test_a_session_has_one_replica_for_all_routes() -> None:
    async def scenario() -> None:
        async with routed(echo, echo, policy="session") as fleet:
            router, one, two = fleet.running.router, *fleet.replicas
            for name in ("a", "b", "c"):
                await fleet.http.post("/v1/other", json={"model": "m"}, headers={"x-session-id": name})
                before = await router.assigned_replica("m", name)
                other = two if before == one.url else one
                await router.assign_session("m", name, other.url, before)
                count = len(other.requests)
                await fleet.http.post("/v1/other", json={"model": "m"}, headers={"x-session-id": name})
                assert len(other.requests) == count + 1 and before in (one.url, two.url)

    run(scenario())


def test_a_timeout_of_the_client_holds() -> None:
    async def hang(connection: Connection, request: ReceivedRequest) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with routed(hang) as fleet:
            response = await fleet.http.post(EMBEDDINGS, json={}, headers={"x-request-timeout-ms": "30"})
            assert response.status_code == 504 and response.json()["error"]["code"] == "replica_timeout"
            assert 1 <= int(fleet.received()[0].headers["x-request-timeout-ms"]) <= 30

    run(scenario())


def test_a_body_that_is_too_large_is_rejected_by_the_router() -> None:
    async def scenario() -> None:
        async with routed(echo, http=HttpConfig(max_body_bytes=10)) as fleet:
            response = await fleet.http.post(EMBEDDINGS, content=b"x" * 11, headers={"content-type": "a/b"})
            assert response.status_code == 413 and fleet.received() == []

    run(scenario())


def test_an_open_request_is_counted_and_a_shutdown_aborts_it() -> None:
    begun = asyncio.Event()

    async def hang(connection: Connection, request: ReceivedRequest) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with routed(hang, attempts=AttemptLimits(first_token_timeout_seconds=9)) as fleet:
            posting = asyncio.create_task(fleet.http.post(EMBEDDINGS, json={}))
            await begun.wait()
            router = fleet.running.router
            assert len(router.open_proxies) == 1
            assert router.abort_all() == 1
            response = await posting
            assert response.status_code == 503 and response.json()["error"]["code"] == "draining"

    run(scenario())


def test_without_a_ready_replica_it_is_503() -> None:
    async def scenario() -> None:
        async with routed() as fleet:
            response = await fleet.http.get("/v1/uploads")
            assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1

    run(scenario())
