"""json_client.py: bounds of size and time, several hosts, streams, tokens and TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry import json_client
from chairlift.web.registry.json_client import JSONClient, JSONClientConfig
from support_certificates import CertificateAuthority
from support_services_processes import free_port
from support_shares import for_each

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield "{}://{}:{}".format("http" if tls is None else "https", *runner.addresses[0])
    finally:
        await runner.cleanup()


def client(*urls: str, **fields: Any) -> JSONClient:
    return JSONClient(JSONClientConfig(base_urls=urls, **fields))


def answer(text: str, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return handler


async def hang(request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


def test_a_call_sends_json_and_returns_it() -> None:
    async def echo(request: web.Request) -> web.Response:
        body = {"method": request.method, "query": request.query_string, "body": await request.json()}
        return web.json_response(body, headers={"X-Index": "7"})

    async def scenario() -> None:
        async with serving(echo) as url, client(url) as each:
            response = await each.call("PUT", "/a", params=[("x", "1"), ("x", "2")], body={"k": "ä"})
            assert response.status == 200 and response.headers["x-index"] == "7"
            assert response.body == {"method": "PUT", "query": "x=1&x=2", "body": {"k": "ä"}}

    asyncio.run(scenario())


@for_each(("status", "headers", "seconds"), [
    (200, {"Retry-After": "7"}, 7.0), (200, {}, None), (429, {"retry-after": " 0 "}, 0.0),
    (429, {"retry-after": "Thu, 26 Nov 2026 03:00:00 GMT"}, None), (429, {"retry-after": "²"}, None),
    (503, {"Retry-After": "5"}, 5.0), (503, {}, None),
])  # fmt: skip
def test_the_delay_that_a_service_asks_for(status: int, headers: dict[str, str], seconds: float | None) -> None:
    async def respond(request: web.Request) -> web.Response:
        return web.Response(status=status, headers=headers)

    async def scenario() -> None:
        async with serving(respond) as url, client(url) as each:
            if status < 500:
                assert (await each.call("GET", "/")).retry_after == seconds
                return
            with pytest.raises(DiscoveryFailed) as error:
                await each.call("GET", "/")
            assert error.value.details.get("retry_after") == seconds

    asyncio.run(scenario())


def test_the_type_of_a_body_can_be_another_one() -> None:
    async def respond(request: web.Request) -> web.Response:
        return web.json_response(request.content_type)

    async def scenario() -> None:
        async with serving(respond) as url, client(url) as each:
            merge_patch = {"content-type": "application/merge-patch+json"}
            assert (await each.call("PATCH", "/", body={})).body == "application/json"
            assert (await each.call("PATCH", "/", body={}, headers=merge_patch)).body == merge_patch["content-type"]

    asyncio.run(scenario())


def test_a_compressed_response_is_not_asked_for() -> None:
    """An API server of Kubernetes compresses long lists for clients that accept it."""

    async def compress(request: web.Request) -> web.Response:
        response = web.json_response(["x" * 1000])
        response.enable_compression()
        return response

    async def scenario() -> None:
        async with serving(compress) as url, client(url) as each:
            response = await each.call("GET", "/")
            assert "content-encoding" not in response.headers and response.body == ["x" * 1000]

    asyncio.run(scenario())


@pytest.mark.parametrize(("text", "body"), [("", None), ("[1]", [1]), ("text", "text"), ("\xff", "\xff")])
def test_a_body_that_is_not_json_is_text(text: str, body: object) -> None:
    async def scenario() -> None:
        async with serving(answer(text, 404)) as url, client(url) as each:
            response = await each.call("GET", "/")
            assert (response.status, response.body) == (404, body)
            assert response.describe().startswith("status 404: ")

    asyncio.run(scenario())


def test_a_response_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_client, "MAX_RESPONSE_BYTES", 100)

    async def scenario() -> None:
        async with serving(answer("1" * 101)) as url, client(url) as each:
            with pytest.raises(DiscoveryFailed, match="more than 100 bytes, the limit"):
                await each.call("GET", "/")

    asyncio.run(scenario())


def test_a_host_that_hangs_fails_or_is_down_is_followed_by_the_next() -> None:
    async def scenario() -> None:
        async with serving(hang) as slow, serving(answer("x", 503)) as failing, serving(answer("1")) as good:
            down = f"http://127.0.0.1:{free_port()}"
            async with client(down, slow, failing, good) as each:
                assert (await each.call("GET", "/", timeout_seconds=0.05)).body == 1
                assert each.base_url == good  # the next call begins there
            async with client(down, slow, failing) as each:
                with pytest.raises(DiscoveryFailed) as error:
                    await each.call("GET", "/", timeout_seconds=0.05)
            for part in (down, f"{slow}: no answer within 0.05 s", f"{failing} answers with status 503: x"):
                assert part in str(error.value)

    asyncio.run(scenario())


def test_a_redirect_is_not_followed() -> None:
    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"location": "http://127.0.0.1:1/"})

    async def scenario() -> None:
        async with serving(redirect) as url, client(url) as each:
            assert (await each.call("GET", "/")).status == 302

    asyncio.run(scenario())


def lines_of(*chunks: bytes, hang_seconds: float = 0.0) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0.005)
        await asyncio.sleep(hang_seconds)
        return response

    return handler


async def read_stream(handler: Handler, idle_seconds: float = 1.0) -> list[Any]:
    async with (
        serving(handler) as url,
        client(url) as each,
        each.stream("GET", "/", idle_seconds=idle_seconds) as lines,
    ):
        return [line async for line in lines]


def test_a_stream_is_lines_whatever_the_chunks() -> None:
    assert asyncio.run(read_stream(lines_of(b'{"a"', b": 1}\n\n[2", b"]\n3\n"))) == [{"a": 1}, [2], 3]


def test_a_stream_that_is_idle_ends() -> None:
    assert asyncio.run(read_stream(lines_of(b"1\n", hang_seconds=5), idle_seconds=0.1)) == [1]


def test_streams_that_are_cut_too_long_or_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_client, "MAX_RESPONSE_BYTES", 100)
    for handler, message in (
        (lines_of(b"1\n[2"), "ends within a line"), (lines_of(b"[" * 101), "more than 100 bytes"),
        (lines_of(b"x\n"), "a line of the stream is not JSON"), (answer("denied", 403), "status 403: denied"),
    ):  # fmt: skip
        with pytest.raises(DiscoveryFailed, match=message):
            asyncio.run(read_stream(handler))


def test_a_stream_whose_host_is_down_moves_on_to_the_next() -> None:
    async def scenario() -> None:
        async with serving(lines_of(b"1\n")) as good, client(f"http://127.0.0.1:{free_port()}", good) as each:
            with pytest.raises(DiscoveryFailed):
                async with each.stream("GET", "/", idle_seconds=1):
                    pass
            async with each.stream("GET", "/", idle_seconds=1) as lines:
                assert await anext(lines) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("content", [b"", b"  \n", b"a\nb", b"\xff", b"x" * 70_000])
def test_token_files_that_hold_no_token(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    config = JSONClientConfig(base_urls=("http://h",), token_file=tmp_path / "token")
    with pytest.raises(DiscoveryFailed, match="the token file"):
        config.read_token()


def test_tls_with_a_ca_and_a_client_certificate(tmp_path: Path) -> None:
    authority, other = CertificateAuthority(tmp_path, "ca"), CertificateAuthority(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = authority.issue("client")
    files = {"cert_file": certificate, "key_file": key}

    async def scenario() -> None:
        async with serving(answer("1"), context) as url:
            async with client(url, ca_file=authority.file, **files) as each:
                assert (await each.call("GET", "/")).body == 1
            for fields in ({"ca_file": other.file, **files}, {"ca_file": authority.file}):
                async with client(url, **fields) as each:
                    with pytest.raises(DiscoveryFailed):
                        await each.call("GET", "/")

    asyncio.run(scenario())


def test_tls_files_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nonsense", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cannot read the TLS files .*ca\.pem"):
        client("https://h", ca_file=tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match="cert_file and key_file need each other"):
        client("https://h", cert_file=tmp_path / "ca.pem")


def test_the_error_of_a_call_has_no_password() -> None:
    async def scenario() -> None:
        async with client("http://user:secret@127.0.0.1:9") as each:
            with pytest.raises(DiscoveryFailed) as caught:
                await each.call("GET", "/a")
        assert "secret" not in caught.value.message and "http://***@127.0.0.1:9" in caught.value.message

    asyncio.run(scenario())
