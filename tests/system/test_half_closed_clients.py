"""Clients that close their sending side: whole responses, streamed or not, of a server and through a router."""

import http.client
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from chairlift.web.half_closed_connection import CONTINUE
from support_faults import LONG_REQUEST, SLOW_ENGINE
from support_process import TIMEOUT_SECONDS, wait_until
from support_router_process import direct_or_routed
from support_server import COMPLETIONS, Server, fake_server

REQUEST: dict[str, Any] = {**LONG_REQUEST, "max_tokens": 40}


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    with fake_server(SLOW_ENGINE, admin=True) as running:
        yield running


@pytest.fixture(scope="module", params=["direct", "router"])
def server(request: pytest.FixtureRequest, replica: Server) -> Iterator[Server]:
    with direct_or_routed(request.param, replica) as running:
        yield running


def send(server: Server, body: dict[str, Any]) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_SECONDS)
    content = json.dumps(body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    client.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    return client


@pytest.mark.parametrize("stream", [False, True])
def test_the_response_is_whole(server: Server, stream: bool) -> None:
    with send(server, {**REQUEST, "stream": stream}) as client:
        client.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(client)
        response.begin()  # skips the interim response, as clients do
        body = response.read()
        assert response.status == 200 and response.getheader("connection") == "close"
        if stream:
            assert body.endswith(b"data: [DONE]\n\n")
        else:
            assert json.loads(body)["usage"]["completion_tokens"] == REQUEST["max_tokens"]
        assert client.recv(1) == b""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_client_that_is_gone_is_noticed(server: Server, replica: Server, stream: bool, is_reset: bool) -> None:
    num_aborted = replica.metric("requests_aborted_total")
    client = send(server, {**LONG_REQUEST, "stream": stream})
    if is_reset:
        client.shutdown(socket.SHUT_WR)
        while CONTINUE not in (received := client.recv(4096)) and b"200 OK" not in received:
            pass
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends a reset
    client.close()
    wait_until(lambda: replica.metric("requests_aborted_total") == num_aborted + 1)
    wait_until(replica.is_idle)
