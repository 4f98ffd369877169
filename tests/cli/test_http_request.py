"""send_request: method, path, key and fields arrive, and status and body come back, whole and in time."""

import asyncio
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chairlift.cli.client_tls import tls_context
from chairlift.cli.http_request import error_reason, send_request
from support_certificates import CertificateAuthority
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


@contextmanager
def answering(*pieces: bytes, seconds: float = 0.0, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Answer one connection on a port of this machine with the pieces, each after so many seconds."""
    listener, stop = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve() -> None:
        try:
            connection, _ = listener.accept()
            with connection if tls is None else tls.wrap_socket(connection, server_side=True) as stream:
                stream.recv(65_536)
                for piece in pieces:
                    stream.sendall(piece)
                    if stop.wait(seconds):
                        break
        except OSError:  # the client has gone
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        listener.close()
        thread.join(10)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"


def test_a_body_that_trickles_ends_with_its_time() -> None:
    """No single wait is as long as the limit, and the body would be complete after a second."""
    with answering(HEAD % 50, *[b"x"] * 50, seconds=0.02) as port, pytest.raises(TimeoutError, match=r"within 0\.2 s"):
        send_request(f"http://127.0.0.1:{port}/", "", timeout_seconds=0.2)


def test_a_body_that_is_cut_is_no_response() -> None:
    with answering(HEAD % 50, b"x") as port, pytest.raises(http.client.IncompleteRead):
        send_request(f"http://127.0.0.1:{port}/", "", timeout_seconds=5.0)


def test_a_private_authority_is_trusted_by_its_file(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path, "ca")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(*authority.issue("server"))
    with answering(HEAD % 1, b"x", tls=server) as port, pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        send_request(f"https://127.0.0.1:{port}/", "", timeout_seconds=5.0)
    with answering(HEAD % 1, b"x", tls=server) as port:
        tls = tls_context(str(authority.file))
        assert send_request(f"https://127.0.0.1:{port}/", "", timeout_seconds=5.0, tls=tls) == (200, b"x")


def test_a_server_that_asks_for_a_certificate_gets_that_of_the_files(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path, "ca")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    server.load_cert_chain(*authority.issue("server"))
    server.verify_mode = ssl.CERT_REQUIRED
    mine = [str(file) for file in authority.issue("client")]
    for files, is_accepted in (([], False), (mine, True)):
        with answering(HEAD % 1, b"x", tls=server) as port:
            url, tls = f"https://127.0.0.1:{port}/", tls_context(str(authority.file), *files)
            if is_accepted:
                assert send_request(url, "", timeout_seconds=5.0, tls=tls) == (200, b"x")
            else:
                with pytest.raises((OSError, http.client.HTTPException)):
                    send_request(url, "", timeout_seconds=5.0, tls=tls)


def test_the_reason_of_an_error_is_in_words() -> None:
    for error, reason in (
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (ssl.SSLError(1, "WRONG_VERSION"), "WRONG_VERSION"), (http.client.BadStatusLine("x"), "x"),
        (TimeoutError("timed out"), "timed out"), (TimeoutError(), "TimeoutError"),
    ):  # fmt: skip
        assert error_reason(error) == reason
