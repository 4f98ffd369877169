"""ListenAddress, listeners: free ports, who can reach a host, and many connections accepted at once."""

import asyncio
import socket

import pytest
import uvloop

from chairlift.core.errors import ConfigError
from chairlift.web.service.listen_address import ACCEPTS_PER_ITERATION, ListenAddress, listeners
from support_shares import for_each


def test_any_free_port_is_taken_and_printed() -> None:
    with ListenAddress(port=0).bind() as listener:
        port = listener.getsockname()[1]
        assert ListenAddress(port=0).url(listener) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=f"port {port}"):
            ListenAddress(port=port).bind()


@for_each(("host", "is_loopback"), [
    ("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.5.5.5", True), ("0.0.0.0", False), ("::", False),
])  # fmt: skip
def test_who_can_reach_an_address(host: str, is_loopback: bool) -> None:
    assert ListenAddress(host=host).is_loopback is is_loopback


def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match="cannot resolve the host"):
        ListenAddress(host="nowhere.invalid").bind()
    with pytest.raises(ConfigError, match="cannot resolve the host"):
        _ = ListenAddress(host="nowhere.invalid").is_loopback
    with pytest.raises(ConfigError, match="cannot resolve the host"):
        ListenAddress(host="x" * 300).bind()


@pytest.mark.parametrize(("num_sockets", "accepted"), [(1, 2), (ACCEPTS_PER_ITERATION, ACCEPTS_PER_ITERATION)])
def test_many_connections_are_accepted_in_one_turn_of_the_loop(num_sockets: int, accepted: int) -> None:
    """With one socket, each loop iteration would accept few of many new connections."""
    connections: list[int] = []

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connections.append(1)

    async def scenario() -> None:
        with ListenAddress(port=0).bind() as listener:
            sockets = listeners(listener)
            assert len(sockets) == ACCEPTS_PER_ITERATION
            loop = asyncio.get_running_loop()
            servers = [await loop.create_server(Protocol, sock=each) for each in sockets[:num_sockets]]
            clients = [socket.create_connection(listener.getsockname()) for _ in range(ACCEPTS_PER_ITERATION)]
            while not connections:
                await asyncio.sleep(0)
            assert (len(connections) <= accepted) if num_sockets == 1 else (len(connections) == accepted)
            for each in (*clients, *servers, *sockets):
                each.close()

    uvloop.run(scenario())
