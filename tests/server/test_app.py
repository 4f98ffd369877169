"""ServerApp: its routes, its middleware, and that every path needs a key."""

import asyncio
import gc
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chairlift import __version__
from chairlift.core.errors import Overloaded
from chairlift.core.load_report import ReplicaState
from chairlift.protocol.responses.compaction_request_fields import PATH as COMPACT_PATH
from chairlift.protocol.responses.input_tokens import PATH as INPUT_TOKENS_PATH
from chairlift.server.app import server_app
from chairlift.server.openapi import document
from chairlift.server.replica import Replica
from chairlift.web.admission import AdmissionLimits, Permit
from chairlift.web.auth.api_keys import KeyRing, read_keys
from chairlift.web.auth.credentials import Credentials
from chairlift.web.auth.principal import Principal
from chairlift.web.bounded_http_protocol import Rejection
from chairlift.web.service.http_app import OPEN, HttpApp
from support_config import make_server_config
from support_http import ListeningServer, run_scenario
from support_server import CHAT, COMPLETIONS, HELLO, open_server, run
from support_services import FAKE, fake_service

RING = read_keys(None, {"CHAIRLIFT_API_KEY": "k"})


def ring(key: str = "key", tenant: str = "alice") -> KeyRing:
    import hashlib

    return KeyRing({hashlib.sha256(key.encode()).digest(): Principal(tenant)})


def test_every_documented_route_is_there_and_no_other_method() -> None:
    async def scenario() -> None:
        async with open_server(fake_service()) as server:
            for path, methods in document()["paths"].items():
                for method in ("get", "post", "put", "delete", "patch"):
                    response = await server.http.request(method, path.replace("{id}", "fake"), content=b"{}")
                    if path.startswith("/admin/"):
                        assert response.status_code == 404, path  # without an admin key the route does not exist
                    elif path in (INPUT_TOKENS_PATH, COMPACT_PATH):  # this could be the id of a response, too
                        assert response.status_code == {"post": 400, "get": 404, "delete": 404}.get(method, 405)
                    elif method in methods:
                        is_stored = path.startswith(("/v1/responses/", "/v1/files/", "/v1/batches/"))
                        found = (200, 404) if is_stored else (200, 400, 415)[: 3 if path == "/v1/files" else 2]
                        assert response.status_code in found, (path, response.text)
                    else:
                        assert response.status_code == 405 and response.headers["allow"], (path, method)

    run(scenario())


def test_a_server_with_keys_has_three_paths_without_a_key() -> None:
    async def scenario() -> None:
        async with open_server(fake_service(), keys=ring()) as server:
            for path in document()["paths"]:
                method = next(iter(document()["paths"][path]))
                status = (await server.http.request(method, path.replace("{id}", "fake"))).status_code
                assert status == (200 if path in OPEN else 404 if path.startswith("/admin/") else 401), path
            key_header = {"authorization": "Bearer key"}
            assert (await server.http.post(CHAT, json=HELLO, headers=key_header)).status_code == 200

    run(scenario())


JSON = [(b"content-type", b"application/json; charset=utf-8")]
KEY = (b"authorization", b"Bearer key")


def full_server(keys: KeyRing | None = None, **options: Any) -> tuple[HttpApp, Replica]:
    """Open a server whose admission queue is full; a test starts its replica if needed."""
    limits = AdmissionLimits(max_waiting_requests=1)
    replica = Replica(make_server_config("fake", admission=limits, **options))

    async def drain() -> None:
        replica.lifecycle.drain()

    replica.lifecycle.mark_started(lambda: ReplicaState.READY)
    replica.admission.admit(1)
    return server_app(replica, Credentials(keys or KeyRing()), drain), replica


def test_a_router_that_is_turned_away_early_gets_the_load() -> None:
    server, _ = full_server()
    assert server.early_check is not None
    rejection = server.early_check(CHAT.encode(), [*JSON, (b"x-chairlift-router", b"1")], None)
    assert isinstance(rejection, Rejection)
    [(name, value)] = rejection.headers
    assert name == b"x-chairlift-load" and b";waiting=1;" in value
    plain = server.early_check(CHAT.encode(), JSON, None)
    assert isinstance(plain, Rejection) and plain.headers == ()


def test_a_full_line_turns_work_away_by_its_head_and_nothing_else() -> None:
    server, replica = full_server()
    assert server.early_check is not None
    for path in (CHAT, COMPLETIONS):
        rejection = server.early_check(path.encode(), JSON, None)
        assert isinstance(rejection, Rejection) and (rejection.route, rejection.tenant) == (path, "")
        assert isinstance(rejection.error, Overloaded) and rejection.error.details["retry_after"] >= 1.0
        assert rejection.error.__traceback__ is None, (
            "a traceback would keep its frames alive until the next garbage collection"
        )
        assert replica.admission.open_requests == 1
    for target in ("/tokenize", "/v1/models", CHAT + "?a=b", "/v1/chat", ""):
        assert server.early_check(target.encode(), JSON, None) is None, target
    replica.admission.renew(AdmissionLimits())
    admit = server.early_check(CHAT.encode(), JSON, None)
    assert callable(admit) and replica.admission.waiting_requests == 1
    permit = admit()
    assert isinstance(permit, Permit) and replica.admission.waiting_requests == 2
    replica.admission.renew(AdmissionLimits(max_waiting_requests=1))
    assert admit() is None, "the queue is full again"
    permit.end()
    assert replica.admission.waiting_requests == 1


def test_who_would_be_refused_before_that_for_another_reason_is_not_turned_away() -> None:
    server, replica = full_server(ring())
    assert server.early_check is not None
    for headers in (JSON, [*JSON, (b"authorization", b"Bearer wrong")], [KEY, (b"content-type", b"text/plain")]):
        assert server.early_check(CHAT.encode(), headers, None) is None, headers
    rejection = server.early_check(CHAT.encode(), [*JSON, KEY], None)
    assert isinstance(rejection, Rejection) and rejection.tenant == "alice"
    replica.lifecycle.drain()
    assert server.early_check(CHAT.encode(), [*JSON, KEY], None) is None


def test_a_foreign_host_gets_403_also_from_a_full_server() -> None:
    """The order of the checks does not depend on the load: a web page learns nothing of this server."""
    server, _ = full_server(allowed_hosts=("proxy.example",))
    check, address = server.early_check, ("192.0.2.7", 8000)
    assert check is not None
    for foreign in (
        [(b"host", b"evil.example")], [(b"host", b"10.0.0.1")], [(b"host", b"localhost"), (b"host", b"evil.example")],
        [(b"host", b"localhost"), (b"origin", b"https://evil.example")], [(b"sec-fetch-site", b"cross-site")],
    ):  # fmt: skip
        assert check(CHAT.encode(), [*JSON, *foreign], address) is None, foreign
    for own in (b"localhost:8000", b"192.0.2.7:8000", b"proxy.example"):
        assert isinstance(check(CHAT.encode(), [*JSON, (b"host", own)], address), Rejection), own


def test_a_listening_server_leaves_a_foreign_host_to_its_application() -> None:
    async def scenario(listening: ListeningServer) -> None:
        client = await listening.connect()
        for host, status in ((b"evil.example", 200), (b"127.0.0.1", 429), (b"localhost", 429)):
            head = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: " + host + b"\r\ncontent-type: application/json\r\n"
            assert (await client.request(head + b"content-length: 2\r\n\r\n{}")).status == status, host

    server, _ = full_server()
    assert run_scenario(scenario, early_check=server.early_check).paths == [CHAT]


def test_with_cors_no_request_is_rejected_by_its_header_block() -> None:
    assert full_server(cors_origins=("https://a.example",))[0].early_check is None


def test_version_and_ping_have_the_shapes_that_vllm_and_sagemaker_know() -> None:
    async def scenario() -> None:
        async with open_server(fake_service()) as server:
            version = await server.http.get("/version")
            assert (version.status_code, version.json()) == (200, {"version": __version__})
            ping = await server.http.get("/ping")
            assert (ping.status_code, ping.content) == (200, b"")
            server.replica.lifecycle.drain()
            assert (await server.http.get("/ping")).status_code == 503
        async with open_server(None) as starting:
            ping = await starting.http.get("/ping")
            assert (ping.status_code, ping.content) == (503, b"")

    run(scenario())


def test_metrics_may_be_open() -> None:
    async def scenario() -> None:
        async with open_server(fake_service(), keys=ring(), public_metrics=True) as server:
            assert (await server.http.get("/metrics")).status_code == 200
            assert (await server.http.get("/load")).status_code == 401

    run(scenario())


@pytest.mark.parametrize("origin", ["https://a.example", "https://b.example"])
def test_pages_of_named_origins_may_use_it(origin: str) -> None:
    async def scenario() -> httpx.Response:
        async with open_server(fake_service(), cors_origins=("https://a.example",)) as server:
            preflight_headers = {"origin": origin, "access-control-request-method": "POST",
                    "access-control-request-headers": "authorization"}  # fmt: skip
            allowed = (await server.http.options(CHAT, headers=preflight_headers)).headers.get(
                "access-control-allow-origin"
            )
            response = await server.http.post(CHAT, json=HELLO, headers={"origin": origin})
            assert response.headers.get("access-control-allow-origin") == allowed
            return allowed

    assert run(scenario()) == (origin if origin == "https://a.example" else None)


def test_a_page_can_read_why_it_was_refused() -> None:
    async def scenario() -> None:
        origin = {"origin": "https://a.example"}
        async with open_server(fake_service(), keys=RING, cors_origins=("*",)) as server:
            for response in (
                await server.http.post(CHAT, json=HELLO, headers=origin),
                await server.http.post(CHAT, json={}, headers={**origin, "authorization": "Bearer k"}),
            ):
                assert response.status_code in (400, 401)
                assert response.headers["access-control-allow-origin"] == "*"
                assert "x-request-id" in response.headers["access-control-expose-headers"]

    run(scenario())


def test_refusals_before_a_route_are_counted() -> None:
    async def scenario() -> str:
        async with open_server(None) as starting:
            assert (await starting.http.post(CHAT, json=HELLO)).status_code == 503
            page = (await starting.http.get("/metrics")).text
        async with open_server(fake_service(), keys=RING, public_metrics=True) as server:
            assert (await server.http.post(CHAT, json=HELLO)).status_code == 401
            assert (await server.http.post(CHAT, json=HELLO, headers={"authorization": "Bearer k"})).status_code == 200
            return page + (await server.http.get("/metrics")).text

    page = run(scenario())
    for code in ("unavailable", "invalid_api_key"):
        assert f'chairlift_requests_rejected_total{{code="{code}"}} 1.0' in page
    assert page.count("chairlift_requests_rejected_total{") == 2


def test_responses_are_counted_by_their_route() -> None:
    async def scenario() -> str:
        async with open_server(fake_service()) as server:
            for path in ("/v1/models/fake", "/v1/models/else", "/nowhere", "/nowhere/else"):
                await server.http.get(path)
            return (await server.http.get("/metrics")).text

    page = run(scenario())
    for line in (
        '{method="GET",route="/v1/models/{id}",status="200"} 1.0',
        '{method="GET",route="/v1/models/{id}",status="404"} 1.0',
        '{method="GET",route="other",status="404"} 2.0',
    ):  # fmt: skip
        assert f"chairlift_http_requests_total{line}" in page


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fails": (COMPLETIONS, {"model": "fake", "prompt": [126], "max_tokens": 5, "stream": True}),
    "whole": (CHAT, HELLO), "streamed": (CHAT, {**HELLO, "stream": True}), "bad": (CHAT, {**HELLO, "n": 0}),
    "too long": (COMPLETIONS, {"model": "fake", "prompt": "x" * 5000}),
    "no such model": (CHAT, {**HELLO, "model": "y"}),
}  # fmt: skip


@pytest.mark.share(1)
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_leaves_nothing_for_the_garbage_collector(name: str) -> None:
    """Errors and frames can form reference cycles, which take megabytes under a flood."""
    path, body = REQUESTS[name]

    async def scenario() -> int:
        async with open_server(fake_service(replace(FAKE, nan=126))) as server:
            app: Any = server.http._transport.app  # type: ignore[attr-defined]

            async def send(message: Any) -> None:
                pass

            async def send_request() -> None:
                messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

                async def receive() -> Any:
                    if not messages:
                        await asyncio.Event().wait()
                    return messages.pop()

                headers = [(b"content-type", b"application/json")]
                await app({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, send)

            await send_request()
            gc.collect()
            gc.disable()
            try:
                for _ in range(50):
                    await send_request()
                return gc.collect()
            finally:
                gc.enable()

    assert run(scenario()) < 50
