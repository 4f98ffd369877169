"""The requests that clients sent are answered by a server with a scripted model, streamed and not, and by a router."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from record_clients.clients import CLIENTS
from support_recorded_sessions import RecordedRequest, recorded_sessions
from support_router_process import direct_or_routed
from support_server import TESTS, Server, running_server

SESSIONS = {session.client: session for session in recorded_sessions()}
MODEL = "scripted"
FAKE = {"max_model_len": 262_144, "num_blocks": 65_536}
"""The tokens of the scripted model are bytes: agents send 80,000 in their first request."""

STREAMS = {"/api/chat": "application/x-ndjson"}
"""Path -> content type of a stream that has no server-sent events."""

WAITING = pytest.mark.xfail(strict=True, reason="/v1/responses takes only functions as tools")
NAMES = [pytest.param(name, marks=WAITING) if name.startswith("codex") else name for name in CLIENTS]


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    command = [sys.executable, str(TESTS / "support_scripted_model.py"), json.dumps({"fake": FAKE})]
    with running_server(command, {}) as server:
        yield server.wait_until_ready()


@pytest.fixture(scope="module", params=["direct", "router"])
def client(request: pytest.FixtureRequest, replica: Server) -> Iterator[httpx.Client]:
    with direct_or_routed(request.param, replica) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def send(client: httpx.Client, request: RecordedRequest, **changed: Any) -> httpx.Response:
    """Send a request with the model's name here, and other fields of the body that are changed."""
    headers = {name: value for name, value in request.headers.items() if name != "accept-encoding"}
    if not isinstance(request.body, dict):
        return client.request(request.method, request.path, headers=headers)
    body = json.dumps({**request.body, "model": MODEL, **changed})
    return client.request(request.method, request.path, headers=headers, content=body)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NAMES)
def test_each_request_of_a_session_is_answered(client: httpx.Client, name: str) -> None:
    for request in SESSIONS[name].requests:
        for stream in (True, False) if request.generates else (None,):
            changed = {} if stream is None else {"stream": stream}
            response = send(client, request, **changed)
            assert response.status_code == 200, response.text
            kind = response.headers["content-type"].partition(";")[0]
            assert kind == ("application/json" if not stream else STREAMS.get(request.path, "text/event-stream"))
            if stream:
                assert '"error":{' not in response.text.replace(" ", ""), response.text
