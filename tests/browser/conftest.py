"""Fixtures of the browser tests: Chromium, and servers with the demo model, scripted and echoed replies."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support_browser import WebPage, open_chromium
from support_server import TESTS, Server, real_server, running_server, scripted_model_server

OpenPage = Callable[..., WebPage]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    with open_chromium() as browser:
        yield browser


@pytest.fixture
def open_page(chromium: Any) -> Iterator[OpenPage]:
    """Open the page of a server; every page is checked for errors at the end of the test."""
    pages: list[WebPage] = []

    def open_one(server: Server, view: str = "", **options: Any) -> WebPage:
        pages.append(WebPage(chromium, server.url, **options))
        return pages[-1].open(view)

    yield open_one
    try:
        for page in pages:
            page.check()
    finally:
        for page in pages:
            page.close()


@pytest.fixture(scope="session")
def demo_server(chromium: Any) -> Iterator[Server]:
    """`chairlift serve` with the demo model."""
    with real_server("--served-model-name", "chairlift-demo") as server:
        yield server


@pytest.fixture(scope="session")
def scripted_server(chromium: Any) -> Iterator[Server]:
    """A server with scripted replies: reasoning and tool calls."""
    with scripted_model_server() as server:
        yield server


@pytest.fixture(scope="session")
def echo_server(chromium: Any) -> Iterator[Server]:
    """A server that replies with the last message of the user, 4 ms for each character."""
    parameters = json.dumps({"repeats": True, "fake": {"seconds_per_step": 0.004}})
    with running_server([sys.executable, str(TESTS / "support_scripted_model.py"), parameters], {}) as server:
        yield server.wait_until_ready()
