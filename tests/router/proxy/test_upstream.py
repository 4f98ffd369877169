"""upstream: which headers pass, API keys, TLS files, and connections that are used again."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from chairlift.core.errors import ConfigError
from chairlift.router.attempts.events import AttemptBroken, ConnectFailed, FailureReason, RequestSent, ResponseEnded
from chairlift.router.proxy.upstream import UpstreamConfig
from support_attempt_task import attempt, upstream_of
from support_certificates import CertificateAuthority
from support_router import Connection, ReceivedRequest, scripted
from support_server import run


async def answer(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({})


def sent_headers(*headers: tuple[bytes, bytes], config: UpstreamConfig | None = None) -> list[tuple[str, str]]:
    """Return the headers of a request to a replica, without the one that every request has."""

    async def scenario() -> list[tuple[str, str]]:
        async with upstream_of(config) as upstream:
            return upstream.request_headers(list(headers), {"x-own": "1"})

    found: list[tuple[str, str]] = run(scenario())
    assert found.count(("accept-encoding", "identity")) == 1, "a stream is read, so it must not be compressed"
    return [each for each in found if each[0] != "accept-encoding"]


# -- headers -----------------------------------------------------------------------------------------------------------


def test_headers_of_the_client_pass_in_their_order_and_the_routers_follow() -> None:
    own = ((b"content-type", b"application/json"), (b"x-a", b"1"), (b"traceparent", b"00-1"), (b"x-a", b"2"))
    expected = [("content-type", "application/json"), ("x-a", "1"), ("traceparent", "00-1"), ("x-a", "2")]
    assert sent_headers(*own) == [*expected, ("x-own", "1")]


@pytest.mark.share(10)
@pytest.mark.parametrize(
    "name",
    [
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "host", "content-length", "authorization", "cookie", "expect",
        "accept-encoding", "origin", "referer", "x-request-id", "x-request-timeout-ms", "x-chairlift-router",
        "x-chairlift-progress", "sec-fetch-mode", "x-forwarded-for", "x-forwarded-host",
    ],
)  # fmt: skip
def test_headers_of_one_connection_and_those_the_router_sets_are_removed(name: str) -> None:
    assert sent_headers((name.encode(), b"v"), (b"x-a", b"1")) == [("x-a", "1"), ("x-own", "1")]


def test_headers_that_connection_names_are_removed() -> None:
    headers = ((b"x-a", b"1"), (b"connection", b"close, X-B"), (b"x-b", b"2"), (b"connection", b"x-c"), (b"x-c", b"3"))
    assert sent_headers(*headers) == [("x-a", "1"), ("x-own", "1")]


@pytest.mark.parametrize(
    ("value", "received"),
    [("é".encode(), "é".encode()), (b"\xe9", "é".encode()), (b"", b"")],
    ids=["utf-8", "latin-1", "empty"],
)
def test_header_values_beyond_ascii_arrive_as_utf_8(value: bytes, received: bytes) -> None:
    async def scenario() -> None:
        async with scripted(answer) as replica, upstream_of() as upstream:
            await attempt(upstream, replica.url, headers=[(b"x-name", value)])
            assert replica.requests[0].headers["x-name"].encode("latin-1") == received

    run(scenario())


def test_response_headers_pass_but_those_of_the_connection_and_of_the_replica() -> None:
    async def respond(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond(
            b"zip", connection="keep-alive, x-hop", x_hop="1", Keep_Alive="timeout=5", server="s", date="d",
            set_cookie="c=1", x_request_id="theirs", x_chairlift_load="l", content_encoding="gzip", X_Ratelimit="9",
            x_chairlift_replica="http://10.0.0.7", x_chairlift_attempts="2",
        )  # fmt: skip

    async def scenario() -> None:
        async with scripted(respond) as replica, upstream_of() as upstream:
            log = await attempt(upstream, replica.url)
            assert log.events[-1] == ResponseEnded(1, b"zip"), "a body passes as it is, with its encoding"
            assert list(log.response.headers) == [
                (b"content-type", b"application/json"), (b"content-encoding", b"gzip"), (b"x-ratelimit", b"9"),
            ]  # fmt: skip

    run(scenario())


@pytest.mark.parametrize(("method", "status", "length"), [("HEAD", 200, [b"17"]), ("GET", 304, [])])
def test_a_response_to_head_keeps_the_length_of_the_body_that_it_has_not(
    method: str, status: int, length: list[bytes]
) -> None:
    async def respond(connection: Connection, request: ReceivedRequest) -> None:
        connection.write(b"HTTP/1.1 %d OK\r\ncontent-length: 17\r\n\r\n" % status)

    async def scenario() -> None:
        async with scripted(respond) as replica, upstream_of() as upstream:
            log = await attempt(upstream, replica.url, method=method, body=None)
            assert log.response.status == status
            assert list(log.response.headers) == [(b"content-length", each) for each in length]

    run(scenario())


def test_redirects_are_not_followed_and_cookies_not_kept() -> None:
    async def respond(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond({}, 302, location="/other", set_cookie="a=1")

    async def scenario() -> None:
        async with scripted(respond) as replica, upstream_of() as upstream:
            url = replica.url.replace("127.0.0.1", "localhost")  # cookies of an address would not be kept anyway
            for _ in range(2):
                log = await attempt(upstream, url, method="GET", body=None)
                assert log.response.status == 302 and (b"location", b"/other") in log.response.headers
            assert len(replica.requests) == 2 and "cookie" not in replica.requests[1].headers

    run(scenario())


def test_a_request_says_nothing_about_the_router_that_the_client_has_not_said() -> None:
    async def scenario() -> None:
        async with scripted(answer) as replica, upstream_of() as upstream:
            await attempt(upstream, replica.url, headers=[(b"content-type", b"text/plain")])
            await attempt(upstream, replica.url)
            own = {"host", "accept-encoding", "x-request-id", "x-chairlift-router", "content-length"}
            assert replica.requests[0].headers.keys() == own | {"content-type"}
            assert replica.requests[1].headers.keys() == own
            assert replica.requests[0].headers["host"] == replica.url.removeprefix("http://")

    run(scenario())


# -- keys --------------------------------------------------------------------------------------------------------------


def test_the_key_replaces_the_clients_and_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "key"
    file.write_text("one \nsecond line\n")

    async def scenario() -> None:
        async with upstream_of(UpstreamConfig(key_file=file)) as upstream:
            headers = upstream.request_headers([(b"authorization", b"Bearer client")], {})
            assert [value for name, value in headers if name == "authorization"] == ["Bearer one"]
            file.write_text("two")
            assert upstream.key_headers() == {"authorization": "Bearer one"}
            upstream.reload()
            assert upstream.key_headers() == {"authorization": "Bearer two"}
            file.write_text("")
            with caplog.at_level(logging.ERROR):
                upstream.reload()
            assert upstream.key_headers() == {"authorization": "Bearer two"}
            assert "the old key and certificates towards the replicas stay" in caplog.text and str(file) in caplog.text

    run(scenario())


def test_without_a_key_file_there_is_no_authorization() -> None:
    assert sent_headers((b"authorization", b"Bearer client")) == [("x-own", "1")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "replica_key_file {} has no API key in its first line"),
        (b"\nkey", "replica_key_file {} has no API key in its first line"),
        (b"a key", "replica_key_file {} has no API key in its first line"),
        (b"a\x00b", "replica_key_file {} has no API key in its first line"),
        (b"\xff", "cannot read replica_key_file {}: "),
        (None, "cannot read replica_key_file {}: No such file or directory"),
    ],
    ids=["empty", "empty line", "blank", "control character", "no ascii", "no file"],
)
def test_a_key_file_that_cannot_be_used_is_an_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        UpstreamConfig(key_file=file).read_key()
    assert message.format(file) in str(caught.value) and caught.value.details["option"] == "replica_key_file"
    with pytest.raises(ConfigError) as caught:
        UpstreamConfig(admin_key_file=file).read_admin_key()
    assert caught.value.details["option"] == "replica_admin_key_file"


# -- TLS ---------------------------------------------------------------------------------------------------------------


def server_context(authority: CertificateAuthority, clients: CertificateAuthority | None = None) -> ssl.SSLContext:
    """Return the context of a replica with TLS, which asks for certificates of `clients`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("replica"))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.file)
    return context


def tls_events(config: UpstreamConfig, context: ssl.SSLContext) -> list[Any]:
    async def scenario() -> list[Any]:
        async with scripted(answer, context) as replica, upstream_of(config) as upstream:
            return (await attempt(upstream, replica.url)).events

    return run(scenario())  # type: ignore[no-any-return]


def test_a_replica_is_reached_with_its_ca_and_not_with_another_one(tmp_path: Path) -> None:
    one, other = CertificateAuthority(tmp_path, "one"), CertificateAuthority(tmp_path, "other")
    assert tls_events(UpstreamConfig(ca=one.file), server_context(one))[-1] == ResponseEnded(1, b"{}")
    assert tls_events(UpstreamConfig(ca=other.file), server_context(one)) == [ConnectFailed(1)]
    assert tls_events(UpstreamConfig(), server_context(one)) == [ConnectFailed(1)], "the system does not know it"


def test_mutual_tls(tmp_path: Path) -> None:
    servers, clients = CertificateAuthority(tmp_path, "servers"), CertificateAuthority(tmp_path, "clients")
    certificate, key = clients.issue("router")
    config = UpstreamConfig(ca=servers.file, certificate=certificate, key=key)
    assert tls_events(config, server_context(servers, clients))[-1] == ResponseEnded(1, b"{}")
    # in TLS 1.3 the replica rejects a client when that one has finished its part of the handshake
    events = tls_events(UpstreamConfig(ca=servers.file), server_context(servers, clients))
    assert events == [RequestSent(1), AttemptBroken(1, FailureReason.RESET)]
    old = server_context(servers, clients)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert tls_events(UpstreamConfig(ca=servers.file), old) == [ConnectFailed(1)]


def test_a_certificate_and_its_key_come_together() -> None:
    for given, missing in (("certificate", "replica_tls_key"), ("key", "replica_tls_cert")):
        with pytest.raises(ConfigError, match=f"replica_tls_(cert|key) needs {missing}, too") as caught:
            UpstreamConfig(**{given: Path("x")})
        assert caught.value.details["option"] == {"certificate": "replica_tls_cert", "key": "replica_tls_key"}[given]


def test_tls_files_that_cannot_be_used_are_errors(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path, "ca")
    certificate, key = authority.issue("router")
    other_key = authority.issue("other")[1]
    empty, locked = tmp_path / "empty", tmp_path / "locked.key"
    empty.touch()
    private = load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    for config, option, named in (
        (UpstreamConfig(ca=tmp_path / "none"), "replica_tls_ca", "none: No such file"),
        (UpstreamConfig(ca=empty), "replica_tls_ca", "empty"),
        (UpstreamConfig(certificate=certificate, key=other_key), "replica_tls_cert", "router.pem with replica_tls_key"),
        (UpstreamConfig(certificate=empty, key=key), "replica_tls_cert", "empty with replica_tls_key"),
        (UpstreamConfig(certificate=certificate, key=tmp_path / "none"), "replica_tls_cert", "No such file"),
        (UpstreamConfig(certificate=certificate, key=locked), "replica_tls_cert", "locked.key"),
    ):
        with pytest.raises(ConfigError) as caught:
            config.make_ssl_context()
        assert named in str(caught.value) and caught.value.details["option"] == option


# -- connections -------------------------------------------------------------------------------------------------------


def test_connections_are_used_again_and_a_request_that_may_not_be_repeated_has_a_new_one() -> None:
    async def scenario() -> None:
        connections: list[int] = []

        async def note(connection: Connection, request: ReceivedRequest) -> None:
            connections.append(connection.port)
            await connection.respond({})

        async with scripted(note) as replica, upstream_of() as upstream:
            for is_repeatable in (True, True, False, False, True):
                await attempt(upstream, replica.url, is_repeatable=is_repeatable)
            first, second, third, fourth, last = connections
            assert first == second == last and len({first, third, fourth}) == 3
            assert not (await replica_is_open(upstream)), "a new connection is closed behind its response"

    async def replica_is_open(upstream: Any) -> bool:
        await asyncio.sleep(0)
        return any(upstream._unpooled_session.connector._conns.values())

    run(scenario())
