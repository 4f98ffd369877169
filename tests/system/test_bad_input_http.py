"""Bad HTTP: each message gets its status; the next good request works as before.

The numbers are those of the cases in the HTTP contract.
"""

import json
import socket

import httpx
import pytest

from support_bad_input import exchange, rejection_message
from support_server import CHAT, HELLO, Server
from support_shares import FULL

pytestmark = pytest.mark.usefixtures("good_request_still_works")


@pytest.mark.share(3)
@pytest.mark.parametrize("value", [b"a\r b", b"x" * 10_000, "🚡".encode(), b"a b", b"../../x"])
def test_53_a_request_id_that_is_none(server: Server, value: bytes) -> None:
    body = json.dumps(HELLO).encode()
    response = exchange(
        server,
        b"POST %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-request-id: %s\r\ncontent-length: %d\r\n\r\n%s"
        % (CHAT.encode(), value.replace(b"\r", b"\t"), len(body), body),
    )  # fmt: skip
    assert response.startswith(b"HTTP/1.1 200") and b"x-request-id: req-" in response


def test_12_the_content_type(http: httpx.Client) -> None:
    body = json.dumps(HELLO).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/xml"):
        rejection_message(http.post(CHAT, content=body, headers={"content-type": kind}), 415)
    assert http.post(CHAT, content=body).status_code == 200
    assert http.post(CHAT, content=body, headers={"content-type": "Application/JSON; charset=utf-8"}).status_code == 200


def test_13_a_compressed_body(http: httpx.Client) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    rejection_message(http.post(CHAT, content=b"\x1f\x8b" + bytes(1000), headers=headers), 415)


def test_14_a_body_over_the_limit(server: Server, http: httpx.Client) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % CHAT.encode()
    response = exchange(server, head + b"content-length: 4000001\r\n\r\n{")
    assert response.startswith(b"HTTP/1.1 413") and b"connection: close" in response
    assert exchange(server, head + b"content-length: %s\r\n\r\n{" % (b"9" * 30)).startswith(
        (b"HTTP/1.1 413", b"HTTP/1.1 400")
    )
    piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    response = exchange(server, head + b"transfer-encoding: chunked\r\n\r\n" + piece * 80)
    assert response.startswith(b"HTTP/1.1 413")


@pytest.mark.share(1)
def test_15_a_body_that_does_not_come(server: Server) -> None:
    response = exchange(
        server, b"POST %s HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n" % CHAT.encode()
    )
    assert response.startswith(b"HTTP/1.1 408") and b"connection: close" in response


def test_16_a_head_without_end(server: Server) -> None:
    assert exchange(server, b"GET /livez HTTP/1.1\r\nx: " + b"y" * 6_000_000).startswith(b"HTTP/1.1 431")
    headers = b"".join(b"x%d: y\r\n" % number for number in range(10_000))
    assert exchange(server, b"GET /livez HTTP/1.1\r\n" + headers + b"\r\n").startswith(b"HTTP/1.1 431")


@pytest.mark.share(4)
@pytest.mark.parametrize("path", [
    b"//v1/models", b"/v1/../admin/state", b"/v1/%2e%2e/admin/state", b"/v1/models/", b"/livez/", b"/LIVEZ",
    b"/v1/models%00", b"/admin/state", b"/%61dmin/state", b"/v1", b"/v1/models/fake/../../admin",
])  # fmt: skip
def test_18_and_20_paths_that_are_none(server: Server, path: bytes) -> None:
    response = exchange(server, b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path)
    assert response.startswith(b"HTTP/1.1 404") and b'"code":' in response


@pytest.mark.share(4)
@pytest.mark.parametrize(("verb", "path"), [
    ("GET", CHAT), ("TRACE", CHAT), ("PUT", CHAT), ("DELETE", "/v1/models"), ("POST", "/livez"), ("FROBNICATE", CHAT),
])  # fmt: skip
def test_19_other_verbs(server: Server, verb: str, path: str) -> None:
    response = exchange(server, f"{verb} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    assert response.startswith(b"HTTP/1.1 405") and b"\r\nallow: " in response


def test_56_a_thousand_requests_in_one_go(server: Server) -> None:
    names = [b"r%d" % number for number in range(1000)]
    body = b"".join(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx-request-id: %s\r\n\r\n" % name for name in names)
    response = exchange(
        server, body + b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-request-id: last\r\n\r\n"
    )
    result = [line.split(b": ")[1] for line in response.split(b"\r\n") if line.startswith(b"x-request-id: ")]
    assert result == [*names, b"last"]


def test_56_a_connection_goes_on_after_a_bad_request(server: Server) -> None:
    body = json.dumps(HELLO).encode()
    bad_request = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n{" % CHAT.encode()
    good_head = b"POST %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (
        CHAT.encode(),
        len(body),
    )
    response = exchange(server, bad_request + good_head + body)
    assert response.startswith(b"HTTP/1.1 400") and b"HTTP/1.1 200" in response


def test_59_bodies_of_two_lengths(server: Server) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: localhost\r\n" % CHAT.encode()
    both = (
        head
        + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
        + b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    )
    response = exchange(server, both)
    assert (
        response.startswith(b"HTTP/1.1 400") and response.count(b"HTTP/1.1 ") - response.count(b"HTTP/1.1 request") == 1
    )
    response = exchange(server, head + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n")
    assert (
        response.startswith(b"HTTP/1.1 400") and response.count(b"HTTP/1.1 ") - response.count(b"HTTP/1.1 request") == 1
    )
    body = json.dumps(HELLO).encode()
    response = exchange(
        server, head + b"expect: 100-continue\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    )
    assert response.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


@pytest.mark.share(1)
def test_60_many_idle_connections(server: Server, http: httpx.Client) -> None:
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(1000 if FULL else 200)]
    try:
        assert http.post(CHAT, json=HELLO).status_code == 200
        for each in connections:
            each.settimeout(30)
            assert each.recv(1) == b""  # closed by the server
    finally:
        for each in connections:
            each.close()


@pytest.mark.parametrize("data", [
    b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-key: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
])  # fmt: skip
def test_61_other_protocols(server: Server, data: bytes) -> None:
    response = exchange(server, data)
    assert response == b"" or (response.startswith(b"HTTP/1.1 400") and b'"error"' in response)


def test_62_pages_of_others(http: httpx.Client) -> None:
    body = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    response = http.options(CHAT, headers=body)
    assert response.status_code == 405 and "access-control-allow-origin" not in response.headers
    response = http.post(CHAT, json=HELLO, headers={"origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in response.headers
