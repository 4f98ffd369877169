"""Fixtures of the tests of bad input: a server with low limits, and a good request."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support_bad_input import send_good_request
from support_router_process import direct_or_routed
from support_server import Server, fake_server

ROUTER_LIMITS = ("--max-body-bytes", "4000000", "--body-timeout", "1", "--idle-timeout", "2")
"""The low limits of a router."""


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    """A server process with a fake engine and low limits."""
    limits = {"max_body_bytes": 4_000_000, "body_timeout": 1.0, "head": {"seconds": 2.0}, "idle_timeout": 2}
    with fake_server(server=limits) as process:
        yield process


@pytest.fixture(scope="module", params=["direct", "router"])
def server(request: pytest.FixtureRequest, replica: Server) -> Iterator[Server]:
    """A server process with a fake engine, or a router in front of it; both have low limits."""
    with direct_or_routed(request.param, replica, options=ROUTER_LIMITS) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def good_response(http: httpx.Client) -> dict[str, Any]:
    return send_good_request(http)


@pytest.fixture
def good_request_still_works(http: httpx.Client, good_response: dict[str, Any]) -> Iterator[None]:
    """After the test, the good request gets the same response as before it."""
    yield
    # A new client: the server may be closing the old one's idle connection.
    with httpx.Client(base_url=http.base_url, headers=http.headers, timeout=30) as fresh:
        assert send_good_request(fresh) == good_response
