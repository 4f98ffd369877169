"""free_port: the port that it returns can be bound."""

import socket

from server_process.free_port import free_port


def test_a_free_port_can_be_used() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", free_port()))
