"""PageRoutes: content, caching, compression and security headers of the page, in a server and in a router."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from chairlift.core.errors import NotFound
from chairlift.router.endpoint import ReplicaKind
from chairlift.web.auth.api_keys import KeyRing, read_keys
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.page_routes import PageRoutes, accepts_gzip, has_etag
from support_router import running_router
from support_router_app import echo, routed
from support_server import MODEL, open_server, run
from support_services import fake_service

PATHS = ("/", "/ui/app.js", "/ui/styles.css", "/ui/favicon.svg", "/ui/views/chat.js")


@dataclass(frozen=True)
class Bytes:
    plain: bytes = b"plain" * 100
    compressed: bytes = b"compressed"
    digest: str = "d1"


@dataclass(frozen=True)
class File:
    path: str = "/"
    content_type: str = "text/html"
    is_immutable: bool = False

    def load(self) -> Bytes:
        return Bytes()


def get(path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Send a request to PageRoutes over two files; returns status, headers and body."""
    routes, sent = PageRoutes([File(), File("/ui/x-1.0.0.js", "text/javascript", True)]), list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a file needs no body")

    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    run(routes.send({"type": "http", "method": method, "path": path, "headers": given}, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message["body"] for message in sent[1:])


def test_a_file_is_sent_plain_or_compressed_with_an_etag_of_its_own() -> None:
    status, plain, body = get()
    assert (status, body, plain["content-length"], plain["content-type"]) == (200, b"plain" * 100, "500", "text/html")
    assert plain["etag"] == '"d1"' and plain["vary"] == "accept-encoding" and "content-encoding" not in plain
    status, headers, body = get(accept_encoding="br, gzip;q=0.8")
    assert (status, body, headers["content-encoding"], headers["etag"]) == (200, b"compressed", "gzip", '"d1-gzip"')
    assert headers["content-length"] == "10"


def test_head_has_the_headers_of_get_and_no_body() -> None:
    assert get(method="HEAD") == (200, get()[1], b"")


def test_a_known_etag_gets_304_without_a_body() -> None:
    for value in ('"d1"', 'W/"d1"', '"other", "d1"', "*"):
        status, headers, body = get(if_none_match=value)
        assert (status, body) == (304, b"") and headers["etag"] == '"d1"' and "content-length" not in headers
    assert get(if_none_match='"d1"', accept_encoding="gzip")[0] == 200, "the compressed file has another ETag"
    assert get(if_none_match='"d2"')[0] == 200


def test_only_a_file_with_a_version_in_its_name_is_kept_without_asking() -> None:
    assert get()[1]["cache-control"] == "no-cache"
    assert get("/ui/x-1.0.0.js")[1]["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize("path", ["/ui/", "/ui/y.js", "/ui/../x", "/ui//x-1.0.0.js", "/UI/x-1.0.0.js"])
def test_other_paths_are_404(path: str) -> None:
    with pytest.raises(NotFound, match="there is no route"):
        get(path)


def test_the_weights_of_accept_encoding() -> None:
    assert all(map(accepts_gzip, (b"gzip", b"GZIP", b"br;q=1, gzip ; q=0.5", b"gzip;q=1.0")))
    assert not any(map(accepts_gzip, (b"", b"br", b"identity", b"gzip;q=0", b"gzip; q=0.0", b"x-gzip")))
    assert has_etag(b'"a" , "b"', b'"b"') and not has_etag(b"", b'"b"') and not has_etag(b'"bb"', b'"b"')


@asynccontextmanager
async def page_of(kind: str, keys: KeyRing | None = None, *, ui: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    """Open a server, or a router without replicas that would answer."""
    if kind == "server":
        async with open_server(fake_service(), keys=keys, ui=ui) as server:
            yield server.http
        return
    options: dict[str, Any] = {"keys": keys, "kind": ReplicaKind.CHAIRLIFT, "models": (MODEL,)}
    async with (
        running_router(["http://127.0.0.1:9"], http=HttpConfig(ui=ui), **options) as running,
        httpx.AsyncClient(base_url=running.url, timeout=10) as http,
    ):
        yield http


@pytest.mark.parametrize("kind", ["server", "router"])
def test_the_page_needs_no_key_runs_nothing_inline_and_loads_nothing_from_elsewhere(kind: str) -> None:
    async def check() -> None:
        async with page_of(kind, read_keys(None, {"CHAIRLIFT_API_KEY": "user-key"})) as http:
            for path in PATHS:
                response = await http.get(path)
                assert response.status_code == 200 and response.headers["content-encoding"] == "gzip", path
                assert response.headers["x-content-type-options"] == "nosniff"
                head = await http.head(path)
                assert (head.status_code, head.content) == (200, b"")
                assert head.headers["content-length"] == response.headers["content-length"]
                policy = dict(
                    part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";")
                )
                assert (policy["default-src"], policy["frame-ancestors"]) == ("'none'", "'none'")
                assert set(" ".join(policy.values()).split()) <= {"'none'", "'self'", "data:"}
                assert policy["img-src"] == "'self' data:" and "data:" not in policy["script-src"]
                assert policy["font-src"] == "'self'"
                again = await http.get(path, headers={"if-none-match": response.headers["etag"]})
                assert (again.status_code, again.content) == (304, b"")
            assert (await http.get("/v1/models")).status_code == 401
            assert (await http.get("/ui/none.js")).status_code == 401, "what is no file needs a key"
            assert "<div id=" in (await http.get("/", headers={"accept-encoding": "identity"})).text

    run(check())


@pytest.mark.parametrize("kind", ["server", "router"])
def test_without_the_page_its_paths_are_404(kind: str) -> None:
    async def check() -> None:
        async with page_of(kind, ui=False) as http:
            for path in PATHS:
                response = await http.get(path)
                assert response.status_code == 404 and f"there is no route {path}" in response.text, path

    run(check())


def test_a_router_does_not_pass_paths_of_the_page_on() -> None:
    async def check() -> None:
        async with routed(echo, http=HttpConfig(ui=False)) as fleet:
            assert (await fleet.http.get("/")).status_code == (await fleet.http.get("/ui/app.js")).status_code == 404
            assert fleet.received() == []

    run(check())


def test_what_the_page_links_is_served() -> None:
    async def check() -> None:
        async with page_of("server") as http:
            page = (await http.get("/")).text
            for name in re.findall(r'(?:src|href)="([^"]+)"', page):
                response = await http.get(f"/{name}", headers={"accept-encoding": "gzip"})
                assert response.status_code == 200, name
                plain = await http.get(f"/{name}", headers={"accept-encoding": "identity"})
                assert plain.content == response.content and "content-encoding" not in plain.headers

    run(check())
