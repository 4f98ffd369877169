"""Failures: a wrong key, a server that is killed and comes back, errors of requests, and a router without replicas."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from support_browser import WebPage
from support_server import ADMIN_KEY, TESTS, Server, router_server, running_server
from support_services_processes import free_port

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]


@contextmanager
def echo(**parameters: object) -> Iterator[Server]:
    """Start a server that replies with the last message."""
    command = [sys.executable, str(TESTS / "support_scripted_model.py"), json.dumps({"repeats": True, **parameters})]
    with running_server(command, {}) as server:
        yield server.wait_until_ready()


def test_a_wrong_key_is_named_and_asked_for_again(open_page: OpenPage, echo_server: Server) -> None:
    """A router checks the keys here, so that its page is tested, too."""
    keys = {"CHAIRLIFT_API_KEY": "the-user-key", "CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}
    with router_server("--replica", echo_server.url, **keys) as router:
        page = open_page(router)
        page.page.wait_for_selector("dialog[open]")
        assert "needs an API key" in page.page.locator("#key-text").inner_text()
        for key, message in (("wrong", "did not accept this key. Check it"), (ADMIN_KEY, "no admin key")):
            page.get("key").fill(key)
            page.page.get_by_role("button", name="Use key").click()
            page.page.wait_for_function("text => document.getElementById('key-text')?.textContent.includes(text)",
                                        arg=message)  # fmt: skip
            assert page.get("key").input_value() == ""
        page.get("key").fill("the-user-key")
        page.page.keyboard.press("Enter")
        page.page.wait_for_selector("dialog", state="detached")
        assert page.ask("hello").startswith("hello")
        page.page.reload()
        page.page.wait_for_selector("[data-testid=markdown]")
        assert page.ask("again").startswith("again")
        stored = page.page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie]")
        assert "the-user-key" in stored[0] and "the-user-key" not in stored[1] + stored[2]
        page.get("forget").click()
        page.page.get_by_text("This server needs an API key.").wait_for()
        assert "the-user-key" not in page.page.evaluate("JSON.stringify(sessionStorage)")
        page.page.get_by_role("button", name="Cancel").click()
        assert page.get("forget").count() == 0, "there is none to forget"


def test_without_a_key_a_message_fails_in_place_and_retry_asks_again(open_page: OpenPage, echo_server: Server) -> None:
    with router_server("--replica", echo_server.url, CHAIRLIFT_API_KEY="the-user-key") as router:
        page = open_page(router)
        page.page.get_by_role("button", name="Cancel").click()
        page.send("hello")
        page.page.get_by_role("button", name="Cancel").click()
        assert "API key" in page.get("failure").inner_text()
        page.page.get_by_role("button", name="Retry").click()
        page.get("key").fill("the-user-key")
        page.page.keyboard.press("Enter")
        page.page.wait_for_selector("[data-testid=markdown]")
        assert page.get("failure").count() == 0


def test_a_server_that_is_killed_and_comes_back(open_page: OpenPage) -> None:
    port = free_port()
    long = "words that take a while to repeat " * 20
    with echo(port=port, fake={"seconds_per_step": 0.02}) as server:
        page = open_page(server)
        page.ask("hi")
        page.send(long)
        page.page.wait_for_function("() => document.querySelectorAll('.markdown')[1]?.textContent.length > 5")
        server.stop(9)
        page.page.wait_for_selector("[data-testid=failure]")
        assert "connection to the server was lost" in page.get("failure").inner_text()
        page.page.wait_for_selector("text=The server does not respond")
        assert "No connection" in page.page.locator(".state").inner_text()
        page.page.get_by_role("button", name="Retry").click()
        page.page.wait_for_function(
            "() => document.querySelector('.failure')?.textContent.includes('does not respond')"
        )
    with echo(port=port):
        page.page.wait_for_selector("text=The server is back.")
        page.page.get_by_label("Previous version").click()
        page.page.get_by_text("The connection to the server was lost.").wait_for()
        page.get("continue").click()
        page.page.wait_for_function(
            "text => [...document.querySelectorAll('.markdown')].at(-1)?.textContent.trim() === text", arg=long.strip()
        )
        assert page.get("failure").count() == 0


def test_an_error_of_the_server_is_shown_with_its_own_words(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.page.get_by_role("button", name="Settings").click()
    page.get("tools-text").fill('[{"type": "function", "function": {"name": 1}}]')
    page.send("hello")
    page.page.wait_for_selector("[data-testid=failure]")
    assert "tools[0]" in page.get("failure").inner_text()
    page.get("tools-text").fill("")
    page.page.get_by_role("button", name="Retry").click()
    page.wait_for_answers(1)
    assert page.get("markdown").inner_text() == "hello" and page.get("failure").count() == 0


def test_a_router_without_replicas_says_so(open_page: OpenPage) -> None:
    with running_server(
        [sys.executable, "-m", "chairlift", "router", "--port", "0", "--replica", f"http://127.0.0.1:{free_port()}"], {}
    ) as server:
        while not server.url:
            assert server.process.poll() is None, server.log
            time.sleep(0.05)
        page = open_page(server)
        page.page.wait_for_selector(".notice:not(.empty)")
        page.send("hello")
        page.page.wait_for_selector("[data-testid=failure]")
        assert page.get("failure").inner_text()
