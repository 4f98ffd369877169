"""The fleet view: replicas, decisions and timelines of a real fleet, also when a replica is killed."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support_browser import WebPage, findings
from support_process import wait_until
from support_server import ADMIN_KEY, Server, running_server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]
MODEL = "chairlift:demo"


@pytest.fixture
def fleet(chromium: Any, tmp_path: Path) -> Iterator[Server]:
    """`chairlift fleet` with two replicas of the demo model."""
    command = [sys.executable, "-m", "chairlift", "fleet", "--port", "0", "--min-replicas", "2"]
    options = ["--max-replicas", "3", "--state-dir", str(tmp_path)]
    with running_server([*command, *options], {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}) as server:
        server.wait_until_ready()
        try:
            wait_until(lambda: num_healthy(server) == 2)
            yield server
        finally:
            server.stop()


def num_healthy(server: Server) -> int:
    return int(httpx.get(f"{server.url}/load").json()["replicas"]["healthy"])


def kill_a_replica(server: Server) -> str:
    """Kill one replica; return its URL."""
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    replica = httpx.get(f"{server.url}/admin/fleet", headers=headers).json()["replicas"][0]
    port = str(replica["url"]).rpartition(":")[2]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "serve" in words and port in words:
            os.kill(int(folder.name), signal.SIGKILL)
    return str(replica["url"])


def test_replicas_decisions_and_a_replica_that_is_lost(open_page: OpenPage, fleet: Server) -> None:
    page = open_page(fleet, "#/fleet", dark=True)
    page.get("key").fill(ADMIN_KEY)
    page.page.get_by_role("button", name="Use key").click()
    page.page.wait_for_selector("[data-testid=live][data-state=open]")
    cards = page.page.locator("[data-testid=replicas] > li")
    page.page.wait_for_function(
        "() => document.querySelectorAll('[data-testid=replicas] > [data-state=healthy]').length == 2"
    )
    assert "0 → 2" in page.get("decisions").inner_text()
    body = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "a secret"}]}
    for number in range(3):
        reply = httpx.post(f"{fleet.url}/v1/chat/completions", json=body, headers={"x-request-id": f"r-{number}"})
        assert reply.status_code == 200
    page.page.wait_for_function("() => document.querySelectorAll('[data-testid=requests] li').length == 3")
    assert "sent to 127.0.0.1:" in page.get("requests").inner_text()
    assert "secret" not in page.page.content()
    assert findings(page) == []
    url = kill_a_replica(fleet).removeprefix("http://")
    page.page.wait_for_function(
        "url => [...document.querySelectorAll('[data-testid=transitions] li')].some(each =>"
        " each.textContent.includes(url) && /ejected|unhealthy|removed/.test(each.textContent))", arg=url,
    )  # fmt: skip
    page.page.get_by_text("failed: it was killed").first.wait_for()
    page.page.wait_for_function(
        "() => document.querySelectorAll('[data-testid=replicas] > [data-state=healthy]').length == 2"
    )
    assert cards.count() == 2


def test_the_batch_of_a_replica_is_shown_through_the_router(open_page: OpenPage, fleet: Server) -> None:
    page = open_page(fleet, "#/batch")
    page.get("key").fill(ADMIN_KEY)
    page.page.get_by_role("button", name="Use key").click()
    choice = page.get("choose-replica").get_by_role("button")
    choice.nth(1).wait_for()
    assert choice.count() == 2 and "healthy" in choice.first.inner_text()
    name = choice.first.inner_text().split()[0]
    choice.first.click()
    page.page.wait_for_selector("[data-testid=live][data-state=open]")
    assert name in page.page.locator(".live-subtitle").inner_text()
    assert page.page.get_by_text("KV cache").first.is_visible()
    assert findings(page) == []
    page.get("all-replicas").click()
    choice.nth(1).wait_for()
