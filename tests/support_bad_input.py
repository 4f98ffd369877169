"""Requests and checks for the tests of bad input in tests/system."""

import socket
from contextlib import suppress
from typing import Any

import httpx

from support_server import CHAT, HELLO, Server

SHORT_REQUEST: dict[str, Any] = {"model": "fake", "prompt": "hello", "max_tokens": 3, "seed": 1}
KEY = "the-key-of-alice"
MEGABYTE = 10**6


def send_good_request(http: httpx.Client) -> dict[str, Any]:
    """Send a good request and return its response, without fields that vary."""
    response = http.post(CHAT, json=HELLO, headers={"x-request-id": "good"})
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    del result["created"]
    result["usage"].pop("prompt_tokens_details")  # the second time the prompt is cached
    return result


def rejection_message(response: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    """Assert the status, parameter and code of an error response; returns its message."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"] and response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and isinstance(error["message"], str) and error["type"]
    if param is not None:
        assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error
    message: str = error["message"]
    return message


def exchange(server: Server, data: bytes, seconds: float = 30.0) -> bytes:
    """Send bytes and return everything received until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as client:
        with suppress(OSError):  # the server may respond and close before it has read everything
            client.sendall(data)
        received = b""
        while True:
            try:
                part = client.recv(65_536)
            except ConnectionError:
                return received
            if not part:
                return received
            received += part
