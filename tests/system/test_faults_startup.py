"""Startup: requests get a retry-after, and a failed start has a message."""

import httpx

from support_process import wait_until
from support_server import CHAT, HELLO, fake_server, starting_server


def test_while_the_server_starts_requests_get_a_retry_after() -> None:
    with starting_server(factory="slow_start") as server:
        wait_until(lambda: server.url != "")
        assert httpx.get(server.url + "/livez").status_code == 200
        ready = httpx.get(server.url + "/readyz")
        response = httpx.post(server.url + CHAT, json=HELLO)
        assert ready.status_code == 503 and response.status_code == 503
        assert response.json()["error"]["code"] == "starting" and int(response.headers["retry-after"]) >= 1
        server.wait_until_ready()
        assert httpx.post(server.url + CHAT, json=HELLO).status_code == 200


def test_it_can_be_stopped_while_it_starts() -> None:
    with starting_server(factory="slow_start") as server:
        wait_until(lambda: server.url != "")
        assert server.stop() == 0


def test_a_port_that_is_in_use() -> None:
    with fake_server() as server, starting_server(port=server.port) as other:
        assert other.wait_for_exit() != 0
        assert f"cannot listen on 127.0.0.1 port {server.port}" in other.log


def test_a_model_that_cannot_be_loaded() -> None:
    with starting_server(factory="no_model") as server:
        assert server.wait_for_exit() != 0
        assert "model.safetensors is truncated" in server.log
