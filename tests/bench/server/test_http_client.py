"""Client: every end of an exchange, and which connections are reused."""

import asyncio
import socket
import subprocess
import time
from pathlib import Path

import pytest

from chairlift.bench.server import http_client
from chairlift.bench.server.http_client import Client, ExchangeEnd, ExchangeEndKind, Headers, NoResponse
from chairlift.bench.server.server_address import Address
from chairlift.core.errors import ConfigError
from support_scripted_server import (
    HEAD,
    ReceivedRequest,
    Script,
    ScriptedServer,
    chunk,
    plain_response,
    respond_with,
    scripted_server,
    stream_response,
)
from support_server import fake_server, run
from support_shares import for_each


class Kept:
    """Collects a response as it arrives."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.pieces: list[bytes] = []
        self.stamps: list[float] = []

    def head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers

    def body(self, piece: bytes, now: float) -> None:
        self.pieces.append(piece)
        self.stamps.append(now)

    @property
    def text(self) -> bytes:
        return b"".join(self.pieces)


async def send(client: Client, seconds: float = 20.0) -> tuple[ExchangeEnd, Kept]:
    kept = Kept()
    return await client.send(client.request("POST", "/v1/completions", b"{}"), kept, seconds), kept


async def once(script: Script, seconds: float = 20.0) -> tuple[ExchangeEnd, Kept, ScriptedServer]:
    """Send one request to a server with this script."""
    async with scripted_server(script) as server:
        client = Client(Address.of(server.url))
        ended, kept = await send(client, seconds)
        client.close()
        return ended, kept, server


def test_a_request_has_its_host_header_and_never_accepts_compression() -> None:
    async def main() -> None:
        async with scripted_server(respond_with(stream_response(1))) as server:
            client = Client(Address.of(server.url + "/base/v1"), "secret")
            await client.send(client.request("POST", "/v1/completions", b"{}", "x-own: 1\r\n"), Kept(), 20.0)
            client.close()
        (seen,) = server.requests
        assert (seen.method, seen.path, seen.body) == ("POST", "/base/v1/completions", b"{}")
        assert seen.headers == {
            "host": server.url.removeprefix("http://"), "authorization": "bearer secret", "x-own": "1",
            "accept-encoding": "identity", "content-type": "application/json", "content-length": "2",
        }  # fmt: skip

    run(main())


@pytest.mark.parametrize("key", ["a\r\nx: y", "\u00fc"])
def test_a_key_that_no_header_can_hold(key: str) -> None:
    with pytest.raises(ConfigError, match="the key has characters"):
        Client(Address.of("http://h"), key)


def test_a_response_is_complete_for_any_division_into_chunks() -> None:
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" + stream_response(1, 2)

    async def by_bytes(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        for place in range(len(answer)):
            writer.write(answer[place : place + 1])
            await asyncio.sleep(0)

    async def main() -> None:
        _, wanted, _ = await once(respond_with(answer))
        ended, kept, _ = await once(by_bytes)
        assert ended.how is ExchangeEndKind.COMPLETE and kept.status == 200
        assert kept.text == wanted.text and kept.text.endswith(b"data: [DONE]\n\n")
        assert dict(kept.headers)[b"transfer-encoding"] == b"chunked" and kept.stamps == sorted(kept.stamps)

    run(main())


def test_a_connection_is_used_again_and_never_shared() -> None:
    async def main() -> None:
        async with scripted_server(respond_with(stream_response(1))) as server:
            client = Client(Address.of(server.url))
            for _ in range(3):
                assert (await send(client))[0].how is ExchangeEndKind.COMPLETE
            assert server.num_connections == 1
            await asyncio.gather(*(send(client) for _ in range(4)))
            assert server.num_connections == 4 and len(server.requests) == 7
            client.close()

    run(main())


@pytest.mark.parametrize("answer", [
    plain_response(200, b"x", "connection: close"),
    plain_response(200, b"x") + plain_response(200, b"y"),    # one more than was asked for
    b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
])  # fmt: skip
def test_a_connection_that_is_not_to_be_used_again(answer: bytes) -> None:
    async def main() -> None:
        async with scripted_server(respond_with(answer)) as server:
            client = Client(Address.of(server.url))
            for number in (1, 2):
                ended, kept = await send(client)
                assert (ended.how, kept.text, server.num_connections) == (ExchangeEndKind.COMPLETE, b"x", number)
            client.close()

    run(main())


def test_what_comes_on_a_connection_that_rests_drops_it() -> None:
    async def main() -> None:
        async with scripted_server(respond_with(stream_response(1))) as server:
            client = Client(Address.of(server.url))
            await send(client)
            server.writers[0].write(plain_response(200, b"late"))
            while not server.num_closed:
                await asyncio.sleep(0.01)
            assert (await send(client))[0].how is ExchangeEndKind.COMPLETE and server.num_connections == 2
            client.close()

    run(main())


def test_a_connection_that_rested_too_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "IDLE_REUSE_SECONDS", 0.0)

    async def main() -> None:
        async with scripted_server(respond_with(stream_response(1))) as server:
            client = Client(Address.of(server.url))
            await send(client)
            await send(client)
            assert server.num_connections == 2
            client.close()

    run(main())


@for_each(("answer", "how", "why"), [
    (b"HTTP/1.1 200 OK\r\n\r\nall of it", ExchangeEndKind.COMPLETE, ""),
    (b"", ExchangeEndKind.CONNECTION_LOST, "the connection was closed without a response"),
    (b"HTTP/1.1 200 OK\r\nconte", ExchangeEndKind.CONNECTION_LOST, "the connection was closed without a response"),
    (HEAD + chunk(b"data: 1\n\n"), ExchangeEndKind.CONNECTION_LOST,
     "the connection was closed in the middle"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx", ExchangeEndKind.CONNECTION_LOST,
     "the connection was closed in the middle"),
    (b"SSH-2.0-server\r\n", ExchangeEndKind.INVALID_RESPONSE, ""),
    (HEAD + b"zz\r\n", ExchangeEndKind.INVALID_RESPONSE, ""),
    (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000, ExchangeEndKind.INVALID_RESPONSE, "a head of more than 262144 bytes"),
    (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", ExchangeEndKind.INVALID_RESPONSE, ""),
])  # fmt: skip
def test_how_a_server_that_closes_ends_an_exchange(answer: bytes, how: ExchangeEndKind, why: str) -> None:
    async def main() -> None:
        before = time.monotonic()
        ended, _, _ = await once(respond_with(answer, closes=True))
        assert ended.how is how and (ended.why == why or how is ExchangeEndKind.INVALID_RESPONSE)
        assert before <= ended.at <= time.monotonic()

    run(main())


def test_a_server_that_resets_ends_an_exchange_that_had_no_length() -> None:
    async def reset(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome of it")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    ended, _, _ = run(once(reset))
    assert ended.how is ExchangeEndKind.CONNECTION_LOST


def test_a_taker_that_raises_ends_the_exchange() -> None:
    class Choosy(Kept):
        def body(self, piece: bytes, now: float) -> None:
            raise ValueError("not this")

    async def main() -> None:
        async with scripted_server(respond_with(stream_response(1))) as server:
            client = Client(Address.of(server.url))
            ended = await client.send(client.request("GET", "/"), Choosy(), 20.0)
            assert (ended.how, ended.why) == (ExchangeEndKind.INVALID_RESPONSE, "not this")
            client.close()

    run(main())


async def _never(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    await writer.drain()
    await asyncio.sleep(0.05)


def test_a_server_that_does_not_end_is_left_in_time() -> None:
    async def main() -> None:
        async with scripted_server(_never) as server:
            client = Client(Address.of(server.url))
            ended, kept = await send(client, 2.0)
            assert (ended.how, ended.why, kept.status) == (ExchangeEndKind.TIMEOUT, "no response in time", 200)
            while not server.num_closed:
                await asyncio.sleep(0.01)

    run(main())


def test_a_cancelled_request_closes_its_connection() -> None:
    async def main() -> None:
        async with scripted_server(_never) as server:
            asking = asyncio.create_task(send(Client(Address.of(server.url))))
            while not server.requests:
                await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            while not server.num_closed:
                await asyncio.sleep(0.01)

    run(main())


def test_a_port_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def main() -> None:
        ended, _ = await send(Client(Address.of(f"http://127.0.0.1:{port}")))
        assert (ended.how, ended.why) == (ExchangeEndKind.UNREACHABLE, "connection refused")
        with pytest.raises(NoResponse, match=f"http://127.0.0.1:{port} does not respond: connection refused"):
            await Client(Address.of(f"http://127.0.0.1:{port}")).fetch("GET", "/")

    run(main())


def test_an_unknown_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*arguments: object, **named: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(http_client.socket, "getaddrinfo", look)

    async def main() -> None:
        ended, _ = await send(Client(Address.of("http://nowhere.invalid")))
        assert (ended.how, ended.why) == (
            ExchangeEndKind.UNREACHABLE,
            "its name is not known: Name or service not known",
        )

    run(main())


def test_of_several_addresses_one_that_accepts_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_resolve", lambda address: ["::1", "127.0.0.1"])

    async def main() -> None:
        async with scripted_server(respond_with(plain_response(200, b"x", "connection: close"))) as server:
            client = Client(Address.of(server.url))
            for _ in range(2):
                assert (await send(client))[0].how is ExchangeEndKind.COMPLETE
            assert client._addresses == ["127.0.0.1"]

    run(main())


def test_a_whole_response_is_fetched_up_to_a_limit() -> None:
    async def main() -> None:
        async with scripted_server(respond_with(plain_response(404, b"gone"))) as server:
            client = Client(Address.of(server.url))
            assert await client.fetch("GET", "/x") == (404, b"gone")
            with pytest.raises(NoResponse, match="the response is too long"):
                await client.fetch("GET", "/x", limit=3)

    run(main())


def test_https_with_a_certificate_that_is_trusted_and_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext"]
    made += ["subjectAltName=DNS:localhost", "-keyout", files["key"], "-out", files["certificate"]]
    subprocess.run(made, check=True, capture_output=True)

    async def main(url: str) -> None:
        url = url.replace("127.0.0.1", "localhost")
        ended, _ = await send(Client(Address.of(url)))
        assert ended.how is ExchangeEndKind.UNREACHABLE and ended.why.startswith("its certificate is not trusted")
        monkeypatch.setenv("SSL_CERT_FILE", files["certificate"])
        assert (await Client(Address.of(url)).fetch("GET", "/livez"))[0] == 200

    with fake_server(tls=files) as server:
        run(main(server.url))
