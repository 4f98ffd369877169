"""The batch view: what the engine computes is seen row by row, with an admin key only, and readers get it as text."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support_browser import WebPage, findings
from support_server import ADMIN_KEY, Server, real_server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]
MODEL = "chairlift-demo"


@pytest.fixture(scope="module")
def server(chromium: Any) -> Iterator[Server]:
    """A server with the demo model, an admin key, and room for two requests at once."""
    options = ("--served-model-name", MODEL, "--max-running-requests", "2", "--num-blocks", "400")
    with real_server(*options, CHAIRLIFT_ADMIN_KEY=ADMIN_KEY) as process:
        yield process


ALL_ROWS = """() => document.querySelectorAll('tr[data-state=decode]').length == 2
    && document.querySelector('tr[data-state=waiting]')?.textContent.includes('the batch is full')
    && document.querySelectorAll('[data-testid=rows] tbody tr').length > 2"""
NUM_REQUESTS = 9
"""Two run at once, each for half a second to a second, so that some wait for several seconds."""


def give_key(page: WebPage, key: str) -> None:
    page.get("key").fill(key)
    page.page.get_by_role("button", name="Use key").click()


def open_batch(open_page: OpenPage, server: Server, **options: Any) -> WebPage:
    page = open_page(server, "#/batch", **options)
    give_key(page, ADMIN_KEY)
    page.page.wait_for_selector("[data-testid=live][data-state=open]")
    return page


def generate(server: Server, name: str, max_tokens: int) -> httpx.Response:
    body = {
        "model": MODEL, "max_tokens": max_tokens, "ignore_eos": True,
        "messages": [{"role": "user", "content": "a secret " * 20}],
    }  # fmt: skip
    headers = {"x-request-id": name}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=120)


def test_the_view_needs_the_admin_key(open_page: OpenPage, server: Server) -> None:
    page = open_page(server, "#/batch")
    give_key(page, "wrong")
    page.page.get_by_text("The server did not accept this key.").wait_for()
    page.page.get_by_role("button", name="Cancel").click()
    page.page.wait_for_selector("[data-testid=live-denied]")
    page.page.get_by_role("button", name="Try again").click()
    give_key(page, ADMIN_KEY)
    page.page.wait_for_selector("[data-testid=live][data-state=open]")


STEPS = """async () => {
  const { BatchModel } = await import("/ui/live/batch_model.js");
  const model = new BatchModel();
  const take = (...ids) => model.takeSteps(ids.map((id) => [id, 1, 2, [], [3]]));
  take(7, 8);
  take(8, 9);
  take(30, 31);
  return model.steps.map(({ id, isAfterGap }) => [id, isAfterGap]);
}"""


def test_steps_between_two_snapshots_leave_a_gap(open_page: OpenPage, server: Server) -> None:
    page = open_page(server)
    assert page.page.evaluate(STEPS) == [[7, False], [8, False], [9, False], [30, True], [31, False]]


def test_requests_are_seen_while_they_run_and_wait_and_afterwards(open_page: OpenPage, server: Server) -> None:
    page = open_batch(open_page, server)
    page.page.get_by_text("Nothing runs.").wait_for()
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        replies = [pool.submit(generate, server, f"request-{number}", 1900) for number in range(NUM_REQUESTS)]
        rows = page.page.locator("[data-testid=rows] tbody tr")
        page.page.wait_for_function(ALL_ROWS)
        assert re.search(r"Step [\d,.k]+: \d+ tokens in .+: \d+ decoded", page.get("last-step").inner_text())
        page.page.wait_for_function("() => document.querySelectorAll('.tile b')[0].textContent == '2'")
        canvas = page.page.locator("canvas.block-map")
        assert canvas.evaluate("each => each.width * each.height") > 10_000
        assert (
            canvas.evaluate("each => new Set(each.getContext('2d').getImageData(0, 0, each.width, 40).data).size") > 4
        )
        rows.first.get_by_role("button").focus()
        page.page.keyboard.press("Enter")
        page.page.get_by_text(re.compile(r"request-\d holds \d+ blocks")).wait_for()
        assert [reply.result().status_code for reply in replies] == [200] * NUM_REQUESTS
    page.page.get_by_text("Nothing runs.").wait_for()
    requests = page.page.locator("[data-testid=requests] li")
    assert requests.count() == NUM_REQUESTS
    assert "waited" in page.get("requests").inner_text() and "a place in the batch" in page.get("requests").inner_text()
    page.page.get_by_label("Only those that waited, were retried or failed").check()
    assert requests.count() == NUM_REQUESTS - 2
    assert "secret" not in page.page.content()


def test_the_charts_say_their_newest_values_to_screen_readers(open_page: OpenPage, server: Server) -> None:
    page = open_batch(open_page, server)
    assert generate(server, "charted", 50).status_code == 200
    page.page.wait_for_function(
        "() => [...document.querySelectorAll('.chart p')].some(each => /Sequences now: running \\d+, waiting \\d+/"
        ".test(each.textContent))"
    )
    assert page.page.locator(".chart .u-wrap").count() == 4


@pytest.mark.parametrize(("phone", "dark"), [(False, False), (True, True)])
def test_axe_finds_nothing_serious(open_page: OpenPage, server: Server, phone: bool, dark: bool) -> None:
    page = open_batch(open_page, server, phone=phone, dark=dark)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(generate, server, "running", 900)
        page.page.wait_for_selector("tr[data-state=decode]")
        assert findings(page) == []
        assert page.page.evaluate("document.querySelector('.live').scrollWidth <= innerWidth"), "it scrolls sideways"
        assert reply.result().status_code == 200


def test_a_server_without_keys_shows_its_batch_and_no_fleet(open_page: OpenPage, demo_server: Server) -> None:
    page = open_page(demo_server, "#/batch")
    page.page.wait_for_selector("[data-testid=live][data-state=open]")
    page.page.get_by_text("Nothing runs.").wait_for()
    links = page.page.get_by_role("navigation", name="Views").get_by_role("link")
    assert links.all_inner_texts() == ["Chat", "Batch"]
    page.page.goto(f"{demo_server.url}/#/fleet")
    page.page.wait_for_selector("[data-testid=composer]")


def test_a_server_with_keys_but_none_of_an_admin_says_so(open_page: OpenPage) -> None:
    with real_server(CHAIRLIFT_API_KEY="the-user-key") as server:
        page = open_page(server, "#/batch")
        page.page.wait_for_selector("[data-testid=live-absent]")
        assert "CHAIRLIFT_ADMIN_KEY" in page.get("live-absent").text_content()


def test_a_hidden_page_watches_no_more_and_a_server_says_that_it_has_no_fleet(
    open_page: OpenPage, server: Server
) -> None:
    page = open_batch(open_page, server)
    page.page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.page.wait_for_selector("[data-testid=live][data-state=paused]")
    page.page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.page.wait_for_selector("[data-testid=live][data-state=open]")
    page.page.evaluate("document.documentElement.dataset.service = 'router'; location.hash = '#/fleet'")
    page.page.wait_for_selector("[data-testid=no-fleet]")
