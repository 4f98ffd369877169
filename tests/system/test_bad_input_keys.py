"""Bad keys: each is rejected, and a request with the right key is answered as before.

The numbers are those of the cases in the HTTP contract.
"""

from collections.abc import Iterator

import httpx
import pytest

from chairlift.web.auth.api_keys import key_line
from support_bad_input import KEY, exchange, rejection_message
from support_server import ADMIN_KEY, CHAT, HELLO, Server, fake_server

pytestmark = pytest.mark.usefixtures("good_request_still_works")


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text("\n".join([key_line(KEY, "alice"), key_line(ADMIN_KEY, "ops", admin=True)]), encoding="utf-8")
    with fake_server(keys=str(file)) as process:
        yield process


@pytest.fixture(scope="module")
def http(guarded_server: Server) -> Iterator[httpx.Client]:
    """A client with the right key: the good request goes to the server with keys."""
    with httpx.Client(base_url=guarded_server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=30) as client:
        yield client


OPEN_PATHS = ("/livez", "/readyz", "/health", "/ping")
GUARDED_PATHS = (
    "/v1/models",
    "/v1/models/fake",
    "/metrics",
    "/load",
    "/version",
    "/docs",
    "/openapi.json",
    "/nowhere",
    CHAT,
)
JWT = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9."


@pytest.mark.share(2)
@pytest.mark.parametrize("path", GUARDED_PATHS)
def test_21_and_55_no_key_and_wrong_keys(guarded_server: Server, path: str) -> None:
    wrong_headers: list[list[tuple[str, str]]] = [
        [], [("authorization", "Bearer wrong")], [("authorization", f"Basic {KEY}")], [("authorization", KEY)],
        [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")], [("authorization", "Bearer")],
        [("authorization", f"Bearer {JWT}")], [("authorization", "Bearer " + "x" * 20_000)], [("api-key", KEY)],
        [("x-api-key", "wrong")], [("x-api-key", KEY), ("x-api-key", KEY)],
        [("x-api-key", KEY), ("authorization", "Bearer wrong")],
        [("host", "x/?"), ("authorization", "Bearer x")], [("host", "a/v1/models?")],
    ]  # fmt: skip
    for headers in wrong_headers:
        response = httpx.get(f"{guarded_server.url}{path}?api_key={KEY}&key={KEY}", headers=headers)
        rejection_message(response, 401, code="invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"


def test_21_the_right_key(guarded_server: Server) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    assert httpx.post(guarded_server.url + CHAT, json=HELLO, headers=headers).status_code == 200
    assert httpx.get(guarded_server.url + "/metrics", headers={"authorization": f"bearer  {KEY}"}).status_code == 200
    for path in OPEN_PATHS:
        assert httpx.get(guarded_server.url + path).status_code == 200


def test_17_an_absolute_address_does_not_get_round_the_key(guarded_server: Server) -> None:
    for target in (b"http://x/v1/models", b"http://x/livez/../v1/models", b"http://livez/v1/models"):
        response = exchange(guarded_server, b"GET %s HTTP/1.1\r\nhost: livez\r\nconnection: close\r\n\r\n" % target)
        assert response.startswith((b"HTTP/1.1 401", b"HTTP/1.1 400"))


def test_64_the_administration_has_its_own_key(guarded_server: Server) -> None:
    url = guarded_server.url + "/admin/state"
    rejection_message(httpx.get(url), 401)
    rejection_message(httpx.get(url, headers={"authorization": f"Bearer {KEY}"}), 403, code="forbidden")
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    response = httpx.get(url, headers=admin)
    assert response.status_code == 200 and response.json()["integrity_errors"] == []
    rejection_message(httpx.get(url, headers={**admin, "origin": "https://elsewhere.example"}), 403)
    rejection_message(httpx.post(guarded_server.url + "/admin/frobnicate", headers=admin), 404)
    rejection_message(httpx.post(guarded_server.url + CHAT, json=HELLO, headers=admin), 403, code="forbidden")
