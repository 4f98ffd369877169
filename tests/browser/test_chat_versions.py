"""Versions of messages and continued answers: nothing of a conversation is lost, and a cut answer goes on."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from support_browser import WebPage
from support_server import Server, router_server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]
LONG = "This sentence is long enough to be stopped in the middle of it. " * 12
OLD = """async (messages) => {
  const database = await new Promise((resolve) => {
    const request = indexedDB.open("chairlift", 1);
    request.onsuccess = () => resolve(request.result);
  });
  const transaction = database.transaction(["conversations", "messages"], "readwrite");
  transaction.objectStore("conversations").put(
    { id: "old", title: "old", updated: 1, count: 4, parameters: {} });
  transaction.objectStore("messages").put(messages, "old");
  await new Promise((resolve) => { transaction.oncomplete = resolve; });
  localStorage.setItem("chairlift.conversation", "old");
}"""
TREE = """async (id) => {
  const { ConversationStore } = await import("/ui/chat/conversation_store.js");
  const store = new ConversationStore();
  const [{ id: first, leaf }] = await store.list();
  const messages = await store.messages(first);
  const place = (id) => messages.findIndex((each) => each.id === id);
  return [messages.map(({ content, parent }) => [content, place(parent)]), place(leaf)];
}"""


def texts(page: WebPage, name: str) -> list[str]:
    return [text.strip() for text in page.get(name).all_inner_texts()]


def edit(page: WebPage, index: int, text: str) -> None:
    page.page.get_by_label("Edit message").nth(index).click(force=True)
    page.get("editor").fill(text)
    page.get("editor").press("Enter")
    page.page.wait_for_function("t => document.querySelectorAll('.markdown')[0]?.textContent.trim() === t", arg=text)
    page.wait_for_answers(1)


def focused(page: WebPage) -> str:
    return str(page.page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.tagName"))


def test_edited_messages_and_answers_keep_earlier_versions_across_a_reload_and_in_other_tabs(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    bodies = page.requests_to("/v1/chat/completions")
    page.ask("one")
    page.ask("two")
    assert page.get("versions").count() == 0
    edit(page, 0, "three")
    edit(page, 0, "four")
    assert texts(page, "user-text") == ["four"] and texts(page, "versions") == ["3 / 3"]
    page.page.get_by_label("Answer again").click()
    page.page.wait_for_function("() => document.querySelectorAll('[data-testid=versions]').length === 2")
    page.wait_for_answers(1)
    assert texts(page, "versions") == ["3 / 3", "2 / 2"]
    assert [len(body["messages"]) for body in bodies] == [1, 3, 1, 1, 1], "no other version is sent"
    previous = page.page.get_by_label("Previous version").first
    previous.focus()
    for shown in (["three"], ["one", "two"]):
        page.page.keyboard.press("Enter")
        page.page.wait_for_function("n => document.querySelectorAll('.user-text').length === n", arg=len(shown))
        page.page.wait_for_function("t => document.querySelector('.user-text').textContent === t", arg=shown[0])
        page.page.wait_for_function("() => document.activeElement.closest('.version-switch')")
        assert texts(page, "user-text") == shown == texts(page, "markdown")
    assert focused(page) == "Next version", "the other button has the focus where there is no earlier version"
    assert texts(page, "versions") == ["1 / 3"]
    other = page.context.new_page()
    other.goto(f"{echo_server.url}/")
    other.get_by_text("1 / 3").wait_for()
    other.get_by_label("Next version").click()
    page.page.get_by_text("2 / 3").wait_for()
    assert texts(page, "user-text") == ["three"]
    page.ask("five")
    page.page.reload()
    page.page.get_by_text("2 / 3").wait_for()
    assert texts(page, "user-text") == ["three", "five"] == texts(page, "markdown")
    other.get_by_text("five").first.wait_for()
    tree = [["one", -1], ["one", 0], ["two", 1], ["two", 2], ["three", -1], ["three", 4], ["four", -1], ["four", 6],
            ["four", 6], ["five", 5], ["five", 9]]  # fmt: skip
    assert page.page.evaluate(TREE) == [tree, 10]


def test_a_tab_shows_that_another_one_generates_the_answer(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.ask("short")
    page.page.get_by_label("Answer again").click()
    page.get("versions").wait_for()
    page.wait_for_answers(1)
    other = page.context.new_page()
    other.goto(f"{echo_server.url}/")
    other.get_by_text("2 / 2").wait_for()
    page.send(LONG * 4)
    other.get_by_text("being generated in another tab").wait_for()
    assert other.get_by_test_id("continue").count() == 0
    other.get_by_label("Previous version").click()
    other.get_by_text("1 / 2").wait_for()
    page.get("stop").click()
    other.get_by_test_id("continue").wait_for()
    assert other.get_by_text("being generated in another tab").count() == 0
    assert texts(page, "conversation") == ["short"], "no copy was made, as the other tab only looked"


def test_conversations_of_the_earlier_format_are_read_without_loss(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    answer = {"role": "assistant", "reasoning": "", "toolCalls": []}
    messages: list[dict[str, Any]] = [
        {"id": "a", "role": "user", "content": "one"}, {"id": "b", "content": "uno", **answer},
        {"id": "c", "role": "user", "content": "two"}, {"id": "d", "content": "due", **answer, "isRunning": True},
    ]  # fmt: skip
    page.page.evaluate(OLD, messages)
    page.page.reload()
    page.page.get_by_text("due").wait_for()
    assert texts(page, "user-text") == ["one", "two"] and texts(page, "markdown") == ["uno", "due"]
    assert texts(page, "stats") == ["", "stopped"]
    edit(page, 0, "three")
    assert texts(page, "versions") == ["2 / 2"]
    assert page.page.evaluate(TREE) == [
        [["one", -1], ["uno", 0], ["two", 1], ["due", 2], ["three", -1], ["three", 4]], 5,
    ]  # fmt: skip


def test_a_tree_of_messages(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    assert page.page.evaluate("""async () => {
      const tree = await import("/ui/chat/message_tree.js");
      const nodes = tree.treeOf([{ id: "a" }, { id: "b", parent: "a" }, { id: "c", parent: "lost" },
        { id: "d", parent: "b" }, { id: "e", parent: null }, { id: "f", parent: "g" }]);
      const ids = (list) => list.map(({ id }) => id).join("");
      const versions = [...tree.versionsOf(nodes)].map(([id, { position, count, previous, next }]) =>
        [id, position, count, previous, next]);
      const answer = (id, content) => ({ id, content, reasoning: "", toolCalls: [] });
      return [nodes.map(({ parent }) => parent), ["d", "c", "x", null].map((leaf) => ids(tree.pathTo(nodes, leaf))),
        ["a", "b", "e"].map((id) => tree.newestLeaf(nodes, id)), versions,
        ["f", "a"].map((id) => ids(tree.withoutEmpty(nodes, answer(id, "")))),
        ids(tree.withoutEmpty(nodes, answer("f", "x"))),
        [{ isRunning: true }, { isInOtherTab: true }, { id: 1 }].map(tree.withoutRun)];
    }""") == [
        [None, "a", "b", "b", None, "e"], ["abd", "abc", "ef", ""], ["d", "d", "f"],
        [["a", 1, 2, None, "e"], ["e", 2, 2, "a", None], ["c", 1, 2, None, "d"], ["d", 2, 2, "c", None]],
        ["abcde", "abcdef"], "abcdef",
        [{"isRunning": False, "isStopped": True}] * 2 + [{"id": 1}],
    ]  # fmt: skip


def test_a_stopped_answer_goes_on_without_a_seam_and_its_tokens_add_up(
    open_page: OpenPage, echo_server: Server
) -> None:
    """Through a router, which has what the server has."""
    with router_server("--replica", echo_server.url) as router:
        page = open_page(router)
        bodies = page.requests_to("/v1/chat/completions")
        page.send(LONG)
        page.page.wait_for_function("() => document.querySelector('.markdown')?.textContent.length > 20")
        page.get("stop").click()
        page.wait_for_answers(1)
        shown = texts(page, "markdown")[0]
        page.page.reload()
        page.get("continue").click()
        page.get("continue").wait_for(state="detached")
        page.wait_for_answers(1)
        assert texts(page, "markdown") == [LONG.strip()] and page.get("versions").count() == 0
        assert bodies[1]["continue_final_message"] is True
        begun = bodies[1]["messages"][1]
        assert begun == {"role": "assistant", "content": begun["content"].rstrip()} and begun["content"].startswith(
            shown
        )
        tokens = re.match(r"(\d+) tokens", texts(page, "stats")[0])
        assert tokens and int(tokens[1]) >= len(LONG.strip()), "one for each character, of both parts"
        assert f"of {16.4}k tokens of context used" in texts(page, "context")[0]


def test_an_answer_at_the_token_limit_goes_on_with_its_reasoning(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    bodies = page.requests_to("/v1/chat/completions")
    page.page.get_by_role("button", name="Settings").click()
    page.get("max_tokens").fill("30")
    page.ask("<think>\nI reason.\n</think>\n\nAn answer of several words")
    first = texts(page, "markdown")[0]
    assert "An answer of several words".startswith(first) and first
    for _ in range(2):
        if page.get("continue").count():
            page.get("continue").click()
            page.page.wait_for_function("n => document.querySelector('.markdown').textContent.trim().length > n",
                                        arg=len(first))  # fmt: skip
            page.wait_for_answers(1)
    assert texts(page, "markdown") == ["An answer of several words"] and page.get("continue").count() == 0
    assert bodies[1]["messages"][1]["reasoning_content"].strip() == "I reason."
    page.page.locator(".reasoning summary").click()
    assert page.page.locator(".reasoning-text").inner_text().strip() == "I reason."
    page.get("max_tokens").fill("10")
    page.ask("<think>\nI reason for long.\n</think>\n\nNothing")
    assert "cut within its reasoning; it cannot be continued" in page.get("not-continued").inner_text()
    assert page.get("continue").count() == 0


def test_the_parts_of_a_continued_answer_are_the_answer_in_one_part(open_page: OpenPage, demo_server: Server) -> None:
    page = open_page(demo_server)
    page.page.get_by_role("button", name="Settings").click()
    page.get("temperature").fill("0")
    page.ask("Hello, what can you do?")
    whole, stats = texts(page, "markdown")[0], texts(page, "stats")[0].split()
    page.get("max_tokens").fill("12")
    page.page.get_by_label("Answer again").click()
    for tokens in ("12", "24", stats[0]):
        page.page.get_by_text(f"{tokens} tokens", exact=True).wait_for()
        assert whole.startswith(texts(page, "markdown")[0])
        if tokens != stats[0]:
            page.get("continue").click()
    assert texts(page, "markdown") == [whole] and page.get("continue").count() == 0


def test_what_cannot_go_on_is_said_and_a_failed_continuation_loses_nothing(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    page.page.get_by_role("button", name="Settings").click()
    page.get("max_tokens").fill("4")
    page.ask("one two")
    page.get("tools-text").fill('[{"type": "function", "function": {"name": 1}}]')
    page.get("continue").click()
    page.get("failure").wait_for()
    assert texts(page, "markdown") == ["one"] and "tools[0]" in page.get("failure").inner_text()
    page.get("tools-text").fill("")
    page.get("continue").click()
    page.page.wait_for_function("() => document.querySelector('.markdown').textContent.trim() === 'one two'")
    page.wait_for_answers(1)
    assert page.get("failure").count() == 0 and "8 tokens" in texts(page, "stats")[0]
    assert page.page.evaluate("""async () => {
      const { continuationOf, sumOf } = await import("/ui/chat/continuation.js");
      const cut = { content: "x", reasoning: "", toolCalls: [], finish: "length" };
      const changes = [{}, { finish: "stop" }, { finish: "stop", isStopped: true }, { isRunning: true },
        { finish: "", error: { message: "lost" } }, { content: " " }, { content: "", reasoning: "r" },
        { toolCalls: [{}] }, { isJson: true }];
      const outcomes = changes.map((change) => continuationOf({ ...cut, ...change }));
      const part = (tokens, seconds, isCounted) => ({
        ttft: tokens, tokens, seconds, isCounted, prompt: tokens, cached: 0, rate: seconds && tokens / seconds,
      });
      const { rate, ...sum } = sumOf(part(11, 1, true), part(31, 3, false));
      return [outcomes.map(({ isPossible, reason }) => [isPossible, reason.split(";")[0]]), sum, rate,
        sumOf(null, part(3, 1, true)).tokens, sumOf(sumOf(part(2, 1), part(2, 0)), part(4, 2)).rate,
        sumOf({ ...part(11, 0, true), seconds: undefined, rate: 5 }, part(2, 2, true)).seconds];
    }""") == [
        [[True, ""], [False, ""], [True, ""], [False, ""], [True, ""], [False, ""],
         [False, "This answer was cut within its reasoning"], [False, "This answer was cut within a tool call"],
         [False, "This answer was cut before its JSON was complete, and the schema holds for a whole answer"]],
        {"ttft": 11, "tokens": 42, "isCounted": False, "prompt": 11, "cached": 0, "seconds": 4}, 10.5, 3, 2,
        4,
    ]  # fmt: skip
