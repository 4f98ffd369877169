"""deploy/nginx with a real nginx, router and replica: streams pass at once, and no request is sent twice."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.router.endpoint import ReplicaKind
from chairlift.web.service.http_config import HttpConfig
from support_certificates import CertificateAuthority
from support_nginx import NGINX, PLAIN, TLS, check_config, nginx, unprivileged_folder, write_config
from support_router import COMPLETIONS, Connection, ReceivedRequest, running_router, scripted
from support_router_app import served_replica
from support_server import MODEL, events, run
from support_services import Gate
from support_services_processes import dns_server, free_port

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = {"model": MODEL, "prompt": "hello", "max_tokens": 24, "seed": 1, "stream": True, "ignore_eos": True}
LIMIT = HttpConfig().max_body_bytes


def address(url: str) -> str:
    return url.removeprefix("http://")


async def reflect(connection: Connection, request: ReceivedRequest) -> None:
    """Answer with the headers, the size of the body and the connection."""
    await connection.respond({"headers": request.headers, "bytes": len(request.body), "port": connection.port})


def test_the_redirect_leads_to_the_port_of_tls() -> None:
    text = (NGINX / "nginx-tls.conf").read_text()
    assert re.findall(r"https://\$host:(\d+)", text) == re.findall(r"listen (\d+) ssl", text)


@pytest.mark.full
@pytest.mark.parametrize("name", [PLAIN, TLS])
def test_nginx_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    pair = CertificateAuthority(tmp_path, "ca").issue("server")
    with unprivileged_folder() as folder:
        write_config(folder, (free_port(), free_port()), ["127.0.0.1:9"], pair)
        assert check_config(folder, name) == ""
        (folder / name).write_text((folder / name).read_text("utf-8").replace("pid ", "pidd "), "utf-8")
        with pytest.raises(AssertionError, match='unknown directive "pidd"'):
            check_config(folder, name)


@pytest.mark.full
def test_a_stream_passes_event_by_event_through_nginx_and_the_router() -> None:
    async def scenario() -> None:
        gate = Gate(after=4)
        async with (
            served_replica(hook=gate) as replica,
            running_router([replica], kind=ReplicaKind.CHAIRLIFT, models=(MODEL,)) as router,
            httpx.AsyncClient(timeout=20) as http,
        ):
            with nginx([address(router.url)]) as server:
                headers = {"x-request-id": "mine", "traceparent": TRACE}
                text = ""
                async with http.stream("POST", server.url + COMPLETIONS, json=BODY, headers=headers) as response:
                    assert response.headers["x-request-id"] == "mine"
                    async for line in response.aiter_lines():
                        text += line + "\n"
                        if line.startswith('data: {"') and not gate.opened.is_set():
                            # The engine waits in its fifth step, for this test.
                            assert await asyncio.to_thread(gate.reached.wait, 20) and gate.after == -1
                            gate.opened.set()
                whole = await http.post(router.url + COMPLETIONS, json=BODY)
                assert spoken(text) == spoken(whole.text) and len(spoken(text)) == BODY["max_tokens"]
                (request,) = [each for each in server.requests if each["path"] == COMPLETIONS]
                assert request["request_id"] == "mine" and request["status"] == 200
                assert (await http.get(server.url + "/metrics")).status_code == 404
                assert (await http.get(router.url + "/metrics")).status_code == 200

    run(scenario())


def spoken(text: str) -> str:
    return "".join(each["choices"][0]["text"] for each in events(text) if each != "[DONE]" and each["choices"])


@pytest.mark.full
def test_nginx_keeps_nothing_for_a_client_that_does_not_read() -> None:
    num_sent = 0
    piece, num_pieces = b"x" * 2**20, 48  # more than the sockets' buffers hold

    async def large(connection: Connection, request: ReceivedRequest) -> None:
        nonlocal num_sent
        await connection.stream_head()
        while num_sent < num_pieces:
            await connection.piece(piece)
            num_sent += 1
        await connection.end()

    async def scenario() -> None:
        async with scripted(large) as router, httpx.AsyncClient() as http:
            with nginx([address(router.url)]) as server:
                async with http.stream("POST", server.url + COMPLETIONS, content=b"{}") as response:
                    before = -1
                    while before < num_sent < num_pieces:
                        before = num_sent
                        await asyncio.sleep(0.1)
                    assert num_sent < num_pieces
                    assert sum([len(each) async for each in response.aiter_bytes()]) == len(piece) * num_pieces

    run(scenario())


def test_headers_pass_and_connections_to_the_router_are_kept() -> None:
    async def scenario() -> None:
        async with scripted(reflect) as router, httpx.AsyncClient() as http:
            with nginx([address(router.url)]) as server:
                sent = {"x-request-id": "mine", "traceparent": TRACE, "authorization": "Bearer key"}
                seen = [(await http.post(server.url + COMPLETIONS, headers=sent)).json() for _ in range(2)]
                for each in seen:
                    assert sent.items() <= each["headers"].items()
                    assert each["headers"]["host"] == address(server.url)
                    assert "connection" not in each["headers"] and each["port"] == seen[0]["port"]

    run(scenario())


@pytest.mark.full
def test_a_body_may_be_as_large_as_the_server_accepts_and_no_larger() -> None:
    async def scenario() -> None:
        async with scripted(reflect) as router, httpx.AsyncClient(timeout=20) as http:
            with nginx([address(router.url)]) as server:
                assert (await http.post(server.url + COMPLETIONS, content=b"x" * LIMIT)).json()["bytes"] == LIMIT
                response = await http.post(server.url + COMPLETIONS, content=b"x" * (LIMIT + 1))
                assert response.status_code == 413 and response.json()["error"]["code"] == "body_too_large"
                assert str(LIMIT) in response.json()["error"]["message"]
                assert len(router.requests) == 1

    run(scenario())


def test_a_post_is_sent_to_another_router_only_if_it_was_not_sent() -> None:
    async def cut(connection: Connection, request: ReceivedRequest) -> None:
        connection.reset()

    async def scenario() -> None:
        async with scripted(reflect) as router, scripted(cut) as broken, httpx.AsyncClient() as http:
            with nginx([f"127.0.0.1:{free_port()}", address(router.url)]) as server:
                for _ in range(4):
                    assert (await http.post(server.url + COMPLETIONS, content=b"{}")).status_code == 200
            assert len(router.requests) == 4
            with nginx([address(broken.url), address(broken.url)]) as server:
                response = await http.post(server.url + COMPLETIONS, content=b"{}")
                assert response.status_code == 502 and response.json()["error"]["code"] == "no_router"
                assert response.headers["retry-after"] == "2"
            assert len(broken.requests) == 1

    run(scenario())


@pytest.mark.full
def test_in_compose_nginx_follows_the_router_to_another_address(tmp_path: Path) -> None:
    async def wait_for_status(http: httpx.AsyncClient, url: str, status: int) -> None:
        while (await http.post(url + COMPLETIONS, content=b"{}")).status_code != status:
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        port = free_port()
        with dns_server(tmp_path) as dns:
            dns.start()
            async with httpx.AsyncClient(timeout=20) as http:
                with nginx([f"router.test:{port}"], resolver=dns.address) as server:
                    response = await http.post(server.url + COMPLETIONS, content=b"{}")
                    assert response.status_code == 502 and response.json()["error"]["code"] == "no_router"
                    for host in ("127.0.0.1", "127.0.0.2"):
                        dns.start(f"host-record=router.test,{host}")
                        async with scripted(reflect, host=host, port=port) as router:
                            await wait_for_status(http, server.url, 200)
                            headers = (await http.post(server.url + COMPLETIONS + "?a=%2F")).json()["headers"]
                            assert headers["host"] == address(server.url) and "connection" not in headers
                            assert router.requests[-1].target == COMPLETIONS + "?a=%2F"
                        await wait_for_status(http, server.url, 502)

    run(scenario())


def test_a_client_that_leaves_is_noticed_by_the_router() -> None:
    async def drip(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        while True:
            await connection.piece(b"data: x\n\n")
            await asyncio.sleep(0.005)

    async def scenario() -> None:
        async with scripted(drip) as router, httpx.AsyncClient() as http:
            with nginx([address(router.url)]) as server:
                async with http.stream("POST", server.url + COMPLETIONS, content=b"{}") as response:
                    await anext(response.aiter_bytes())
                    assert router.num_disconnects == 0
                while not router.num_disconnects:
                    await asyncio.sleep(0.005)

    run(scenario())


def test_the_same_with_tls(tmp_path: Path) -> None:
    async def scenario() -> None:
        pair = CertificateAuthority(tmp_path, "ca").issue("server")
        async with scripted(reflect) as router, httpx.AsyncClient(verify=False) as http:
            with nginx([address(router.url)], pair) as server:
                response = await http.post(server.tls_url + COMPLETIONS, content=b"{}")
                assert response.json()["bytes"] == 2 and "strict-transport-security" in response.headers
                moved = await http.post(server.url + COMPLETIONS, content=b"{}")
                assert moved.status_code == 308 and moved.headers["location"] == server.tls_url + COMPLETIONS
                assert len(router.requests) == 1

    run(scenario())


def test_limits_follow_the_defaults_of_the_server() -> None:
    text = (NGINX / "chairlift-http.conf").read_text("utf-8")
    http: dict[str, Any] = dict(re.findall(r"^(\w+) (\d+)s?;$", text, re.MULTILINE))
    defaults = HttpConfig()
    assert int(http["client_max_body_size"]) == defaults.max_body_bytes
    assert int(http["client_body_timeout"]) == defaults.body_timeout
    assert int(http["send_timeout"]) == defaults.write_timeout
    routers = (NGINX / "chairlift-routers.conf").read_text("utf-8")
    (kept,) = re.findall(r"^    keepalive_timeout (\d+)s;$", routers, re.MULTILINE)
    assert int(kept) < defaults.idle_timeout
    for error in re.findall(r"'(\{.*\})'", (NGINX / "chairlift-locations.conf").read_text("utf-8")):
        assert json.loads(error)["error"].keys() == {"message", "type", "param", "code"}
