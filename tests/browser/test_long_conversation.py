"""A conversation of 10,000 messages: few of them are in the document, and the page does everything as before."""

from collections.abc import Callable

import pytest

from support_browser import WebPage
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]

NUM_MESSAGES = 10_000
MAX_RENDERED = 60

FILL = """async (count) => {
  const messages = Array.from({ length: count }, (_, index) => index % 2
    ? { id: `m${index}`, role: "assistant", toolCalls: [], reasoning: "",
        content: `Answer **${index}**\\n\\n${"- a point\\n".repeat(index % 7)}` }
    : { id: `m${index}`, role: "user", content: `Question ${index}` });
  const database = await new Promise((resolve) => {
    const request = indexedDB.open("chairlift", 1);
    request.onsuccess = () => resolve(request.result);
  });
  const transaction = database.transaction(["conversations", "messages"], "readwrite");
  transaction.objectStore("conversations").put(
    { id: "long", title: "A long one", updated: Date.now(), count, parameters: {} });
  transaction.objectStore("messages").put(messages, "long");
  await new Promise((resolve) => { transaction.oncomplete = resolve; });
  localStorage.setItem("chairlift.conversation", "long");
}"""

VISIBLE = """() => {
  const frame = document.querySelector(".messages").getBoundingClientRect();
  return [...document.querySelectorAll("article")].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.bottom > frame.top + 1 && box.top < frame.bottom - 1;
  }).map((each) => Number(each.ariaPosInSet));
}"""

EVERY_FRAME_HAS_TEXT = """async () => {
  const frame = document.querySelector(".messages");
  let empty = 0;
  let most = 0;
  for (let step = 0; step < 60; step += 1) {
    frame.scrollTop = (frame.scrollHeight * ((step * 37) % 60)) / 60;
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    most = Math.max(most, document.querySelectorAll("article").length);
    const box = frame.getBoundingClientRect();
    const shown = [...document.querySelectorAll("article")].filter((each) => {
      const { top, bottom } = each.getBoundingClientRect();
      return bottom > box.top && top < box.bottom;
    });
    empty += shown.length === 0;
  }
  return [empty, most];
}"""


def test_ten_thousand_messages(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.page.evaluate(FILL, NUM_MESSAGES)
    page.page.reload()
    page.page.wait_for_selector("article")
    visible = page.page.evaluate(VISIBLE)
    assert visible[-1] == NUM_MESSAGES, "it opens at its end"
    assert 0 < page.page.locator("article").count() <= MAX_RENDERED
    empty, most = page.page.evaluate(EVERY_FRAME_HAS_TEXT)
    assert (empty, most <= MAX_RENDERED) == (0, True), most
    page.page.evaluate("document.querySelector('.messages').scrollTop = 0")
    page.page.wait_for_selector("text=Question 0")
    assert page.page.evaluate(VISIBLE)[0] == 1
    page.page.get_by_label("Go to the end").click()
    page.page.wait_for_selector(f"text=Question {NUM_MESSAGES - 2}")
    page.send("the last question")
    page.page.wait_for_selector("[data-testid=failure]")
    assert "10001" in page.get("failure").inner_text(), "the server rejects so many messages, and the page says so"
    assert page.page.evaluate(VISIBLE)[-1] == NUM_MESSAGES + 2


def test_what_is_read_stays_in_place_while_an_answer_grows(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.page.evaluate(FILL, 40)
    page.page.reload()
    page.page.wait_for_selector("article")
    page.send("a line that is repeated\n\n" * 20)
    page.page.locator(".messages").hover()
    page.page.mouse.wheel(0, -900)
    page.page.wait_for_selector("[aria-label='Go to the end']")
    before = page.page.evaluate(VISIBLE)
    page.page.wait_for_function("() => !document.querySelector('[data-testid=stop]')")
    assert page.page.evaluate(VISIBLE) == before
