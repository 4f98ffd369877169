"""App: which routes there are, what stands around them, and that no path leads past the keys."""

import asyncio
import gc
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chairlift.core.errors import Overloaded
from chairlift.core.load_report import ReplicaState
from chairlift.server.app import OPEN, ServerApp
from chairlift.server.config import ServerConfig
from chairlift.server.openapi import document
from chairlift.server.replica import Replica
from chairlift.web.admission import AdmissionLimits, Permit
from chairlift.web.auth import KeyRing, Principal, read_keys
from chairlift.web.http_protocol import Rejection
from support_server import CHAT, COMPLETIONS, HELLO, opened, run
from support_services import FAKE, fake_service

RING = read_keys(None, {"CHAIRLIFT_API_KEY": "k"})


def ring(key: str = "key", tenant: str = "alice") -> KeyRing:
    import hashlib

    return KeyRing({hashlib.sha256(key.encode()).digest(): Principal(tenant)})


def test_every_documented_route_is_there_and_no_other_method() -> None:
    async def ask() -> None:
        async with opened(fake_service()) as door:
            for path, methods in document()["paths"].items():
                for method in ("get", "post", "put", "delete", "patch"):
                    answer = await door.http.request(method, path.replace("{id}", "fake"), content=b"{}")
                    if path.startswith("/admin/"):
                        assert answer.status_code == 404, path  # without an admin's key there is none
                    elif method in methods:
                        assert answer.status_code in (200, 400), (path, answer.text)
                    else:
                        assert answer.status_code == 405 and answer.headers["allow"], (path, method)

    run(ask())


def test_a_door_with_keys_opens_three_paths_to_everybody() -> None:
    async def ask() -> None:
        async with opened(fake_service(), keys=ring()) as door:
            for path in document()["paths"]:
                method = next(iter(document()["paths"][path]))
                status = (await door.http.request(method, path.replace("{id}", "fake"))).status_code
                assert status == (200 if path in OPEN else 404 if path.startswith("/admin/") else 401), path
            good = {"authorization": "Bearer key"}
            assert (await door.http.post(CHAT, json=HELLO, headers=good)).status_code == 200

    run(ask())


JSON = [(b"content-type", b"application/json; charset=utf-8")]
KEY = (b"authorization", b"Bearer key")


def full_door(keys: KeyRing | None = None, **options: Any) -> tuple[ServerApp, Replica]:
    """A door whose line takes nobody more; it serves a replica that never starts unless a test lets it."""
    limits = AdmissionLimits(waiting_requests=1)
    replica = Replica(ServerConfig(served_names=("fake",), admission=limits, **options))

    async def drain() -> None:
        replica.lifecycle.drain()

    replica.lifecycle.mark_started(lambda: ReplicaState.READY)
    replica.admission.admit(1)
    return ServerApp(replica, keys or KeyRing(), drain), replica


def test_a_full_line_turns_work_away_by_its_head_and_nothing_else() -> None:
    door, replica = full_door()
    assert door.early_check is not None
    for path in (CHAT, COMPLETIONS):
        away = door.early_check(path.encode(), JSON)
        assert isinstance(away, Rejection) and (away.route, away.tenant) == (path, "")
        assert isinstance(away.error, Overloaded) and away.error.details["retry_after"] >= 1.0
        assert away.error.__traceback__ is None, "it has frames that would hold it until garbage is looked for"
        assert replica.admission.open_requests == 1
    for target in ("/tokenize", "/v1/models", CHAT + "?a=b", "/v1/chat", ""):
        assert door.early_check(target.encode(), JSON) is None, target
    replica.admission.renew(AdmissionLimits())
    admit = door.early_check(CHAT.encode(), JSON)
    assert callable(admit) and replica.admission.waiting_requests == 1
    permit = admit()
    assert isinstance(permit, Permit) and replica.admission.waiting_requests == 2
    replica.admission.renew(AdmissionLimits(waiting_requests=1))
    assert admit() is None, "there is no room any more"
    permit.end()
    assert replica.admission.waiting_requests == 1


def test_who_would_be_refused_before_that_for_another_reason_is_not_turned_away() -> None:
    door, replica = full_door(ring())
    assert door.early_check is not None
    for headers in (JSON, [*JSON, (b"authorization", b"Bearer wrong")], [KEY, (b"content-type", b"text/plain")]):
        assert door.early_check(CHAT.encode(), headers) is None, headers
    away = door.early_check(CHAT.encode(), [*JSON, KEY])
    assert isinstance(away, Rejection) and away.tenant == "alice"
    replica.lifecycle.drain()
    assert door.early_check(CHAT.encode(), [*JSON, KEY]) is None


def test_where_pages_of_other_sites_may_ask_nobody_is_turned_away_by_a_head() -> None:
    assert full_door(cors_origins=("https://a.example",))[0].early_check is None


def test_metrics_may_be_open() -> None:
    async def ask() -> None:
        async with opened(fake_service(), keys=ring(), open_metrics=True) as door:
            assert (await door.http.get("/metrics")).status_code == 200
            assert (await door.http.get("/load")).status_code == 401

    run(ask())


@pytest.mark.parametrize("origin", ["https://a.example", "https://b.example"])
def test_pages_of_named_origins_may_use_it(origin: str) -> None:
    async def ask() -> httpx.Response:
        async with opened(fake_service(), cors_origins=("https://a.example",)) as door:
            wish = {"origin": origin, "access-control-request-method": "POST",
                    "access-control-request-headers": "authorization"}  # fmt: skip
            allowed = (await door.http.options(CHAT, headers=wish)).headers.get("access-control-allow-origin")
            answer = await door.http.post(CHAT, json=HELLO, headers={"origin": origin})
            assert answer.headers.get("access-control-allow-origin") == allowed
            return allowed

    assert run(ask()) == (origin if origin == "https://a.example" else None)


def test_a_page_can_read_why_it_was_refused() -> None:
    async def ask() -> None:
        origin = {"origin": "https://a.example"}
        async with opened(fake_service(), keys=RING, cors_origins=("*",)) as door:
            for answer in (
                await door.http.post(CHAT, json=HELLO, headers=origin),
                await door.http.post(CHAT, json={}, headers={**origin, "authorization": "Bearer k"}),
            ):
                assert answer.status_code in (400, 401)
                assert answer.headers["access-control-allow-origin"] == "*"
                assert "x-request-id" in answer.headers["access-control-expose-headers"]

    run(ask())


def test_refusals_before_a_route_are_counted() -> None:
    async def ask() -> str:
        async with opened(None) as starting:
            assert (await starting.http.post(CHAT, json=HELLO)).status_code == 503
            page = (await starting.http.get("/metrics")).text
        async with opened(fake_service(), keys=RING, open_metrics=True) as door:
            assert (await door.http.post(CHAT, json=HELLO)).status_code == 401
            assert (await door.http.post(CHAT, json=HELLO, headers={"authorization": "Bearer k"})).status_code == 200
            return page + (await door.http.get("/metrics")).text

    page = run(ask())
    for code in ("unavailable", "invalid_api_key"):
        assert f'chairlift_refusals_total{{code="{code}"}} 1.0' in page
    assert page.count("chairlift_refusals_total{") == 2


def test_what_a_door_answers_is_counted_by_its_route() -> None:
    async def ask() -> str:
        async with opened(fake_service()) as door:
            for path in ("/v1/models/fake", "/v1/models/else", "/nowhere", "/nowhere/else"):
                await door.http.get(path)
            return (await door.http.get("/metrics")).text

    page = run(ask())
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


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_leaves_nothing_for_the_garbage_collector(name: str) -> None:
    """Errors hold their frames, which easily hold them: under a flood of refusals such circles are megabytes."""
    path, body = REQUESTS[name]

    async def ask() -> int:
        async with opened(fake_service(replace(FAKE, nan=126))) as door:
            app: Any = door.http._transport.app  # type: ignore[attr-defined]

            async def send(message: Any) -> None:
                pass

            async def once() -> None:
                wire = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

                async def receive() -> Any:
                    if not wire:
                        await asyncio.Event().wait()
                    return wire.pop()

                headers = [(b"content-type", b"application/json")]
                await app({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, send)

            await once()
            gc.collect()
            gc.disable()
            try:
                for _ in range(50):
                    await once()
                return gc.collect()
            finally:
                gc.enable()

    assert run(ask()) < 50
