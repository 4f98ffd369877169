"""router_app: its routes, and that its errors are those of a replica."""

import json
import re
from typing import Any

import httpx
import pytest

from chairlift import __version__
from chairlift.router.app import GENERATION_PATHS, router_app
from chairlift.web.admission import AdmissionLimits, Permit
from chairlift.web.auth.api_keys import read_keys
from chairlift.web.auth.credentials import Credentials
from chairlift.web.bounded_http_protocol import Rejection
from support_router import CHAT, COMPLETIONS, HELLO
from support_router_app import complete, echo, replica_and_router, routed
from support_server import HELLO as FAKE_HELLO
from support_server import run

KEYS = read_keys(None, {"CHAIRLIFT_API_KEY": "k", "CHAIRLIFT_ADMIN_KEY": "a"})
JSON = {"content-type": "application/json"}
VERSION = {"anthropic-version": "2023-06-01"}
MESSAGES = "/v1/messages"
ANTHROPIC_CODES = {400: "invalid_request_error", 404: "not_found_error", 405: "invalid_request_error"}
KEY = {"authorization": "Bearer k"}


def without_id(response: httpx.Response) -> tuple[int, Any, dict[str, str]]:
    """Return status, body without the request's id, and the headers that clients act on."""
    request_id = response.headers["x-request-id"]
    assert request_id
    names = ("content-type", "retry-after", "www-authenticate", "x-should-retry", "allow", "connection")
    headers = {name: response.headers[name] for name in names if name in response.headers}
    return response.status_code, response.text.replace(request_id, "ID"), headers


@pytest.mark.share(2)
@pytest.mark.parametrize(("method", "path", "content", "headers", "status"), [
    ("POST", CHAT, b"{", JSON, 400),
    ("POST", CHAT, b"", JSON, 400),
    ("POST", CHAT, b"[1]", JSON, 400),
    ("POST", CHAT, b'{"a": 1e999}', JSON, 400),
    ("POST", CHAT, b"\xff", JSON, 400),
    ("POST", CHAT, b"{" + b" " * 3000, JSON, 413),
    ("POST", CHAT, b"{}", {"content-type": "text/plain"}, 415),
    ("POST", CHAT, b"{}", {**JSON, "content-encoding": "gzip"}, 415),
    ("POST", CHAT, b'{"model": 5, "messages": [{"role": "user", "content": "a"}]}', JSON, 400),
    ("POST", CHAT, b'{"model": "b", "messages": [{"role": "user", "content": "a"}]}', JSON, 404),
    ("POST", CHAT, b'{"model": "fake"}', JSON, 400),
    ("POST", CHAT, b'{"model": "fake", "messages": 5}', JSON, 400),
    ("POST", CHAT, b'{"model": "fake", "messages": [{"role": "user", "content": "a"}], "n": 1e9}', JSON, 400),
    ("POST", CHAT, b'{"model": "fake", "messages": [{"role": "user", "content": "a"}], "seed": "x"}', JSON, 400),
    ("POST", CHAT, b'{"model": "fake", "messages": [{"role": "user", "content": "a"}], "timeout": 1e305}', JSON, 400),
    ("POST", CHAT, b'{"model": "fake", "messages": [{"role": "user", "content": "a"}], "timeout": -1}', JSON, 400),
    ("POST", CHAT, b'{"model": "fake", "messages": [{"role": "user", "content": "a"}], "resume": 5}', JSON, 400),
    ("POST", COMPLETIONS, b'{"model": "fake"}', JSON, 400),
    ("POST", COMPLETIONS, b'{"model": "fake", "prompt": "a", "max_tokens": -2}', JSON, 400),
    ("POST", "/tokenize", b"{", JSON, 400),
    ("POST", "/tokenize", b"{}", {"content-type": "text/plain"}, 415),
    ("POST", "/tokenize", b"{" + b" " * 3000, JSON, 413),
    ("POST", "/v1/embeddings", b"{}", JSON, 400),
    ("POST", "/v1/embeddings", b'{"model": "fake", "input": ""}', JSON, 400),
    ("POST", "/v1/embeddings", b'{"model": "b", "input": "a"}', JSON, 404),
    ("POST", "/v1/embeddings", b"{}", {"content-type": "text/plain"}, 415),
    ("POST", "/v1/score", b'{"model": "fake", "text_1": "a", "text_2": [[]]}', JSON, 400),
    ("POST", "/v1/rerank", b'{"model": "fake", "query": "a", "documents": 5}', JSON, 400),
    ("POST", "/v1/edits", b"{}", JSON, 404),
    ("GET", "/v1/chat", b"", {}, 404),
    ("GET", CHAT, b"", {}, 405),
    ("DELETE", "/v1/models", b"", {}, 405),
    ("DELETE", "/v1/models", b"", VERSION, 405),
    ("GET", "/v1/models/none", b"", VERSION, 404),
    ("GET", "/v1/v1/messages", b"", VERSION, 404),
    ("GET", MESSAGES, b"", {}, 405),
    ("POST", f"{MESSAGES}/batches", b"{}", JSON, 404),
    ("POST", MESSAGES, b'{"model": "b", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}', JSON, 404),
    ("GET", "/v1/models/none", b"", {}, 404),
    ("GET", "/v1/models", b"", {"host": "evil.example"}, 403),
    ("POST", CHAT, b"{}", {**JSON, "origin": "https://evil.example"}, 403),
    ("GET", "/admin/replicas", b"", {}, 404),
    ("POST", "/admin/drain", b"", {}, 404),
])  # fmt: skip
def test_an_error_of_the_router_is_that_of_a_replica(
    method: str, path: str, content: bytes, headers: dict[str, str], status: int
) -> None:
    async def scenario() -> None:
        async with replica_and_router(max_body_bytes=2500) as clients:
            direct, through = [
                without_id(await http.request(method, path, content=content, headers=headers)) for http in clients
            ]
        assert direct[0] == status, direct
        if MESSAGES in path or "anthropic-version" in headers:
            error = json.loads(direct[1])
            assert (error["type"], error["error"]["type"]) == ("error", ANTHROPIC_CODES[status])
            assert error["request_id"] == "ID" and error["error"]["message"]
        if path not in GENERATION_PATHS:  # the replica's connection is the router's
            direct[2].pop("connection", None)
            through[2].pop("connection", None)
        assert through == direct

    run(scenario())


@pytest.mark.parametrize(("words", "max_tokens", "message"), [
    (9000, 10, r"prompt is too long: \d+ tokens > \d+ maximum"),
    (10, 32_000, r"input length and `max_tokens` exceed context limit: \d+ \+ 32000 > \d+, decrease input length or "
                 r"`max_tokens` and try again"),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_said_in_the_words_of_anthropic(
    words: int, max_tokens: int, message: str, stream: bool
) -> None:
    messages = [{"role": "user", "content": "a " * words}]
    body = {"model": "fake", "max_tokens": max_tokens, "messages": messages, "stream": stream}

    async def scenario() -> None:
        async with replica_and_router() as clients:
            direct, through = [without_id(await http.post(MESSAGES, json=body)) for http in clients]
        assert direct == through and direct[0] == 400
        error = json.loads(direct[1])["error"]
        assert error["type"] == "invalid_request_error" and re.fullmatch(message, error["message"]), error

    run(scenario())


@pytest.mark.share(2)
@pytest.mark.parametrize(("path", "headers", "status"), [
    ("/v1/models", {}, 401), ("/v1/models", {"authorization": "Bearer x"}, 401), ("/v1/models", KEY, 200),
    ("/v1/models", {"authorization": "Bearer a"}, 403), ("/v1/unknown", {}, 401), ("/load", {}, 401),
    ("/admin/replicas", KEY, 403), ("/admin/replicas", {}, 401), ("/readyz", {}, 200), ("/livez", {}, 200),
    ("/health", {}, 200), ("/ping", {}, 200), ("/metrics", {}, 401), ("/version", KEY, 200),
])  # fmt: skip
def test_keys_open_the_same_routes_as_those_of_a_replica(path: str, headers: dict[str, str], status: int) -> None:
    async def scenario() -> None:
        async with replica_and_router(KEYS) as clients:
            direct, through = [await http.get(path, headers=headers) for http in clients]
        assert direct.status_code in (status, 404), direct.text  # /admin/replicas is a router's alone
        assert through.status_code == status
        if status in (401, 403):
            assert without_id(through) == without_id(direct)

    run(scenario())


def test_a_generation_is_that_of_a_replica() -> None:
    async def scenario() -> None:
        async with replica_and_router() as clients:
            bodies = []
            for http in clients:
                response = await http.post(CHAT, json=FAKE_HELLO)
                assert response.status_code == 200, response.text
                bodies.append({**response.json(), "id": "", "created": 0})
        assert bodies[0] == bodies[1]

    run(scenario())


def test_ready_health_version_and_ping() -> None:
    async def scenario() -> None:
        async with routed(echo) as fleet:
            assert (await fleet.http.get("/version")).json() == {"version": __version__}
            for path in ("/readyz", "/health", "/ping", "/livez"):
                assert (await fleet.http.get(path)).status_code == 200, path
            assert (await fleet.http.get("/readyz")).json() == {"state": "ready"}
            fleet.running.router.lifecycle.drain()
            for path in ("/readyz", "/health", "/ping"):
                assert (await fleet.http.get(path)).status_code == 503, path
            assert (await fleet.http.get("/livez")).status_code == 200
        assert fleet.received() == [], "the router answers for itself"
        async with routed() as fleet:
            health = await fleet.http.get("/health")
            assert health.status_code == 503 and health.json()["reason"] == "no replica is ready"

    run(scenario())


def test_what_serve_has_is_passed_on() -> None:
    async def scenario() -> None:
        async with replica_and_router() as clients:
            for path in ("/tokenizer_info", "/tokenizer_info?a=b"):
                direct, through = [await http.get(path) for http in clients]
                assert (direct.status_code, direct.content) == (through.status_code, through.content), path
            body = {"model": "fake", "prompt": "abc"}
            direct, through = [await http.post("/tokenize", json=body) for http in clients]
            assert direct.status_code == 200 and direct.json() == through.json()

    run(scenario())


def test_a_full_queue_rejects_a_request_by_its_header_block() -> None:
    async def scenario() -> None:
        async with routed(complete) as fleet:
            router = fleet.running.router
            app = router_app(router, Credentials(), fleet.running.drain)
            assert app.early_check is not None
            headers = [(b"content-type", b"application/json")]
            acquire = app.early_check(CHAT.encode(), headers, None)
            assert callable(acquire)
            permit = acquire()
            assert isinstance(permit, Permit)
            router.admission.renew(AdmissionLimits(max_waiting_requests=1))
            assert isinstance(app.early_check(COMPLETIONS.encode(), headers, None), Rejection)
            assert app.early_check(b"/tokenize", headers, None) is None
            response = await fleet.post(HELLO)
            assert response.status_code == 429 and response.json()["error"]["code"] == "overloaded"
            assert int(response.headers["retry-after"]) >= 1
            permit.end()
            assert (await fleet.post(HELLO)).status_code == 200
        assert len(fleet.received()) == 1

    run(scenario())
