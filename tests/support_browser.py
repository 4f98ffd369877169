"""The web page in Debian's Chromium: a page object, which fails the test on script errors and foreign requests."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHAIRLIFT_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome") or ""
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
TIMEOUT_MS = 30_000
SERIOUS = ("serious", "critical")
"""What axe calls its findings that no view may have."""
NETWORK_ERRORS = re.compile(r"Failed to load resource|net::ERR")
"""Lines that Chromium writes itself for responses with an error status and for a server that is down."""


@contextmanager
def open_chromium() -> Iterator[Any]:
    """Start Chromium. Skips the tests, with the reason, where Chromium or Playwright is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: the extra `browser`")
    if not CHROMIUM:
        pytest.skip("Chromium is not installed; Debian's package is `chromium`")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class WebPage:
    """The page in one window of Chromium.

    Attributes:
        page: Playwright's page.
        errors: errors of scripts, and what the content security policy refused.
        foreign: requests to any other server than the page's own.
    """

    def __init__(
        self, browser: Any, url: str, *, phone: bool = False, dark: bool = False, moves: bool = False, script: str = ""
    ) -> None:
        """Make a window, where things slide only if it `moves`; `script` runs before those of the page."""
        self.url = url
        self.context = browser.new_context(
            viewport=PHONE if phone else DESKTOP, has_touch=phone, is_mobile=phone,
            reduced_motion="no-preference" if moves else "reduce", color_scheme="dark" if dark else "light",
            device_scale_factor=2 if phone else 1,
        )  # fmt: skip
        if script:
            self.context.add_init_script(script)
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._keep_message)
        self.page.on("dialog", self._refuse_dialog)
        self.page.on("request", self._check_request)

    def _keep_message(self, message: Any) -> None:
        if message.type == "error" and not NETWORK_ERRORS.search(message.text):
            self.errors.append(message.text)

    def _refuse_dialog(self, dialog: Any) -> None:
        self.errors.append(f"a script opened a dialog: {dialog.message}")
        dialog.dismiss()

    def _check_request(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.foreign.append(request.url)

    def open(self, view: str = "") -> "WebPage":
        """Open the page, and wait for its first view."""
        self.page.goto(f"{self.url}/{view}")
        self.page.wait_for_selector("[data-testid=composer]" if view in ("", "#/chat") else "main")
        return self

    def get(self, name: str) -> Any:
        """Return the elements with this test id."""
        return self.page.get_by_test_id(name)

    def send(self, text: str) -> None:
        """Send a message, without waiting for the answer."""
        self.get("composer").fill(text)
        self.get("composer").press("Enter")

    def ask(self, text: str) -> str:
        """Send a message, and return the text of the complete answer."""
        before = self.get("stats").count()
        self.send(text)
        self.wait_for_answers(before + 1)
        return str(self.page.locator(".answer").last.inner_text())

    def wait_for_answers(self, count: int) -> None:
        """Wait until this many answers are complete."""
        self.page.wait_for_function(
            "count => document.querySelectorAll('[data-testid=stats]').length >= count"
            " && !document.querySelector('[data-testid=stop]')", arg=count,
        )  # fmt: skip

    def requests_to(self, path: str) -> list[Any]:
        """Return a list that grows by the JSON body of each request to this path from now on."""
        bodies: list[Any] = []
        self.page.on("request", lambda each: bodies.append(json.loads(each.post_data)) if path in each.url else None)
        return bodies

    def check(self) -> None:
        """Fail on script errors, violations of the policy, and requests to other servers."""
        assert self.errors == [], self.errors  # this module's asserts are not rewritten
        assert self.foreign == [], self.foreign

    def close(self) -> None:
        """Close the window."""
        self.context.close()


def findings(page: WebPage) -> list[str]:
    """Return what axe finds: rule, and the elements."""
    package = pytest.importorskip("axe_playwright_python", reason="axe is not installed: the extra `browser`")
    (script,) = Path(package.__file__).parent.rglob("axe.min.js")
    page.page.evaluate(script.read_text(encoding="utf-8"))
    result: Any = page.page.evaluate("axe.run()")
    assert len(result["passes"]) > 10, "axe has run"
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in result["violations"] for node in each["nodes"] if each["impact"] in SERIOUS
    ]  # fmt: skip
