"""Accessibility: axe finds nothing serious in any state of the page, light and dark, on desktop and phone."""

from collections.abc import Callable

import pytest

from support_browser import WebPage, findings
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]
MESSAGE = (
    "# Title\n\nA `code`, $x^2$, a [link](https://example.com) and a table:\n\n|a|b|\n|-|:-:|\n|1|2|\n\n"
    "```js\nlet x;\n```\n\n- [x] done\n- [ ] open\n\n\\[ \\frac{a}{b} \\]\n\n"
    "<details>\n<summary>More</summary>\n\ntext\n\n</details>"
)
FILE = {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"# Notes"}
FOCUSED = """async ([action, expected]) => {
  const find = (selector) => document.querySelector(selector);
  if (action === "submit") find(".rename").requestSubmit();
  else find(action).click();
  for (let turn = 0; turn < 20; turn += 1) await null; // what a key that comes at once would find: no frame passes
  return document.activeElement.matches(expected);
}"""
FRAMES = """async () => {
  for (let frame = 0; frame < 20; frame += 1) await new Promise(requestAnimationFrame);
}"""
FOCUS = "[document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()]"


@pytest.mark.parametrize(("phone", "dark"), [(False, False), (False, True), (True, False), (True, True)])
def test_axe_finds_nothing_serious(open_page: OpenPage, echo_server: Server, phone: bool, dark: bool) -> None:
    page = open_page(echo_server, phone=phone, dark=dark)
    assert findings(page) == [], "no conversation yet"
    page.get("file-chooser").set_input_files([FILE, FILE | {"name": "photo.png", "buffer": b"\0"}])
    page.get("file-errors").wait_for()
    assert findings(page) == [], "a file, and one that cannot be attached"
    page.ask(MESSAGE)
    page.page.wait_for_selector(".math.display math")
    assert findings(page) == [], "a conversation"
    page.page.get_by_role("button", name="notes.md").click()
    assert findings(page) == [], "the text of a file"
    check_dialog_names(page)
    page.page.get_by_role("button", name="Close", exact=True).click()
    page.page.get_by_role("button", name="Settings").click()
    page.get("temperature").fill("x")
    page.get("schema-text").fill("{")
    page.page.get_by_role("button", name="Save as preset").click()
    assert findings(page) == [], "settings with errors, and the name of a preset"
    page.get("preset-name").fill("One")
    page.get("preset-name").press("Enter")
    page.page.get_by_role("button", name="Delete", exact=True).click()
    assert findings(page) == [], "a preset that is deleted"
    page.get("temperature").fill("")
    page.get("schema-text").fill("")
    page.get("max_tokens").fill("3")
    page.page.get_by_role("button", name="Close settings").click()
    if phone:
        page.page.get_by_role("button", name="Conversations").click()
        assert findings(page) == [], "list of conversations"
    page.get("search").fill("title")
    page.page.locator(".hit").first.wait_for()
    assert findings(page) == [], "what a search has found"
    page.get("search").fill("")
    if phone:
        page.page.locator(".backdrop").click(position={"x": 380, "y": 400})
    page.page.get_by_label("Answer again").click()
    page.get("continue").wait_for()
    assert page.get("versions").count() == 1 and findings(page) == [], "versions, and an answer that was cut"
    page.page.get_by_role("button", name="Export this conversation").click()
    assert findings(page) == [], "export"
    page.page.get_by_role("button", name="Cancel").click()
    page.page.get_by_label("Edit message").first.click(force=True)
    assert findings(page) == [], "editor"


def check_dialog_names(page: WebPage) -> None:
    """Fail unless a heading names the open dialog."""
    heading = "document.getElementById(document.querySelector('dialog[open]').getAttribute('aria-labelledby'))"
    assert page.page.evaluate(f"{heading}.matches('dialog h2') && {heading}.textContent.trim() !== ''")


@pytest.mark.parametrize("moves", [False, True])
def test_escape_closes_what_slides_over_the_chat_and_its_button_has_the_focus_again(
    open_page: OpenPage, echo_server: Server, moves: bool
) -> None:
    page = open_page(echo_server, phone=True, moves=moves)
    page.ask("hello")
    for name, drawer, inside in (
        ("Conversations", ".list-open .sidebar", "New conversation"), ("Settings", ".panel", "Close settings")
    ):  # fmt: skip
        for leave in ("Escape", "button"):
            page.page.get_by_role("button", name=name, exact=True).click()
            page.page.locator(drawer).wait_for()
            page.page.wait_for_function(f"() => document.querySelector('{drawer}').contains(document.activeElement)")
            assert page.page.evaluate("document.activeElement.tagName") == "BUTTON", "a field opens a phone's keyboard"
            if leave == "Escape":
                page.page.keyboard.press("Escape")
            else:
                page.page.get_by_role("button", name=inside).click()
            page.page.locator(drawer).wait_for(state="detached")
            page.page.wait_for_function(f"name => {FOCUS}[0] === name", arg=name)
    page.page.get_by_role("button", name="Conversations").click()
    page.page.set_viewport_size({"width": 1000, "height": 700})
    page.send("a wide window has no drawer in the way")
    page.wait_for_answers(1)


def test_what_opens_or_closes_moves_the_focus_before_the_next_key(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.ask("one")
    page.page.get_by_label("Answer again").click()
    page.get("versions").wait_for()
    for action, focused in (
        ("[aria-label='Previous version']", "[aria-label='Next version']"),
        ("[aria-label='Edit message']", ".editor textarea"),
        (".editor-actions [type=button]", "[aria-label='Edit message']"),
        ("[aria-label='Rename one']", ".rename input"),
        ("submit", "button.conversation"),
        ("[aria-label='Delete one']", "dialog *"),
        ("dialog [type=button]", "button.conversation"),
        ("[aria-label='Settings']", ".panel textarea"),
        (".preset-buttons button", ".preset-name input"),
        ("[data-testid=new]", "#composer"),
    ):
        assert page.page.evaluate(FOCUSED, [action, focused]), action
    page.page.evaluate(FRAMES)
    composer = page.get("composer")
    assert composer.evaluate("each => each === document.activeElement"), "the settings, which stay open, take no focus"
    page.page.get_by_role("button", name="one", exact=True).click()
    page.page.get_by_label("Next version").click()
    composer.focus()
    page.page.evaluate(FRAMES)
    assert composer.evaluate("each => each === document.activeElement"), "a shown version takes no focus away"


def test_what_happens_to_answers_and_conversations_is_announced_and_dialogs_are_named(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    page.page.evaluate("""() => {
      window.heard = [];
      const region = document.querySelector("[data-testid=announcer]");
      new MutationObserver(() => window.heard.push(region.textContent)).observe(region, { childList: true });
    }""")
    page.ask("one")
    page.page.route("**/v1/chat/completions", lambda route: route.abort())
    page.send("two")
    page.get("failure").wait_for()
    page.page.unroute("**/v1/chat/completions")
    page.get("conversation").hover()
    page.page.get_by_label("Rename one").click()
    page.page.get_by_label("Title of the conversation").fill("first")
    page.page.keyboard.press("Enter")
    page.page.wait_for_function("() => document.activeElement.className === 'conversation'")
    for key, focused in (("Escape", "article[aria-label^='You'] [aria-label='Edit message']"), ("Enter", ".messages")):
        page.page.get_by_label("Edit message").first.click(force=True)
        page.page.keyboard.type(" now")
        page.page.keyboard.press(key)
        page.page.wait_for_function("focused => document.activeElement.matches(focused)", arg=focused)
    page.wait_for_answers(1)
    page.get("conversation").hover()
    page.page.get_by_label("Delete first").click()
    page.get("delete").wait_for()
    check_dialog_names(page)
    page.get("delete").click()
    page.page.wait_for_function("() => window.heard.at(-1).includes('deleted')")
    assert page.page.evaluate("window.heard") == [
        "The answer is being generated.", "The answer is complete: one", "The answer is being generated.",
        "The answer failed.", "The conversation is now called “first”.", "The answer is being generated.",
        "The answer is complete: one now", "The conversation “first” was deleted.",
    ]  # fmt: skip
    region = page.get("announcer")
    assert (region.get_attribute("role"), region.count()) == ("status", 1)


def test_axe_finds_what_is_wrong(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.page.evaluate("document.querySelector('.send').removeAttribute('aria-label')")
    page.page.evaluate("document.querySelector('.send').removeAttribute('title')")
    assert any("button-name" in each for each in findings(page))
