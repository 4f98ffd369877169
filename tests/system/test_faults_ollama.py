"""An engine that dies under requests of Ollama's API: streams end with a line of the error, others get 503."""

import json
import os
import signal
import threading
from typing import Any

import httpx
import pytest

from support_faults import SLOW_ENGINE
from support_process import TIMEOUT_SECONDS, wait_until
from support_server import Server, fake_server

LONG: dict[str, Any] = {"model": "fake", "prompt": "hello", "options": {"num_predict": 400, "seed": 1}}


def read_lines(server: Server, body: dict[str, Any], lines: list[str]) -> None:
    with httpx.stream("POST", f"{server.url}/api/generate", json=body, timeout=TIMEOUT_SECONDS) as response:
        assert response.status_code == 200
        lines.extend(response.iter_lines())


@pytest.mark.share(1)
@pytest.mark.parametrize("more", [{}, {"raw": True}])
def test_a_stream_ends_with_the_error(more: dict[str, Any]) -> None:
    with fake_server(SLOW_ENGINE, admin=True) as server:
        lines: list[str] = []
        thread = threading.Thread(target=read_lines, args=(server, LONG | more, lines))
        thread.start()
        wait_until(lambda: server.metric("output_tokens_total") > 0)
        os.kill(server.engine_pid, signal.SIGKILL)
        thread.join(TIMEOUT_SECONDS)
        *parts, last = map(json.loads, lines)
        assert parts and not any(part["done"] for part in parts)
        assert last.keys() == {"error"} and "the engine stopped" in last["error"] and "request req-" in last["error"]


def test_a_whole_response_is_503() -> None:
    with fake_server(SLOW_ENGINE, admin=True) as server:
        responses: list[httpx.Response] = []

        def send() -> None:
            body = LONG | {"stream": False}
            responses.append(httpx.post(f"{server.url}/api/generate", json=body, timeout=TIMEOUT_SECONDS))

        thread = threading.Thread(target=send)
        thread.start()
        wait_until(lambda: server.state()["scheduler"]["active_requests"] == 1)
        os.kill(server.engine_pid, signal.SIGKILL)
        thread.join(TIMEOUT_SECONDS)
        assert responses[0].status_code == 503 and int(responses[0].headers["retry-after"]) >= 1
        assert responses[0].json().keys() == {"error"}
