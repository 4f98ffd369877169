"""Accessibility: axe finds nothing serious in any state of the page, light and dark, on desktop and phone."""

from collections.abc import Callable

import pytest

from support_browser import WebPage, findings
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]
MESSAGE = "# Title\n\nA `code`, a [link](https://example.com) and a table:\n\n|a|b|\n|-|-|\n|1|2|\n\n```js\nlet x;\n```"


@pytest.mark.parametrize(("phone", "dark"), [(False, False), (False, True), (True, False), (True, True)])
def test_axe_finds_nothing_serious(open_page: OpenPage, echo_server: Server, phone: bool, dark: bool) -> None:
    page = open_page(echo_server, phone=phone, dark=dark)
    assert findings(page) == [], "no conversation yet"
    page.ask(MESSAGE)
    assert findings(page) == [], "a conversation"
    page.page.get_by_role("button", name="Settings").click()
    assert findings(page) == [], "settings"
    page.page.get_by_role("button", name="Close settings").click()
    if phone:
        page.page.get_by_role("button", name="Conversations").click()
        assert findings(page) == [], "list of conversations"
        page.page.locator(".backdrop").click(position={"x": 380, "y": 400})
    page.page.get_by_label("Edit message").first.click(force=True)
    assert findings(page) == [], "editor"


def test_axe_finds_what_is_wrong(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.page.evaluate("document.querySelector('.send').removeAttribute('aria-label')")
    page.page.evaluate("document.querySelector('.send').removeAttribute('title')")
    assert any("button-name" in each for each in findings(page))
