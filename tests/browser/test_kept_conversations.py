"""What a browser keeps of conversations when its storage fails, or when the page goes away at once."""

from collections.abc import Callable

import pytest

from support_browser import WebPage
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]
LONG = "This sentence is long enough to be cut off in the middle of it. " * 12
NOTHING_IS_KEPT = """async () => {
  const { ConversationStore } = await import("/ui/chat/conversation_store.js");
  for (const name of ["save", "remove"]) ConversationStore.prototype[name] = () => new Promise(() => {});
}"""
"""A browser that has not yet written anything when the page goes away."""

FULL = """() => {
  window.put = IDBObjectStore.prototype.put;
  IDBObjectStore.prototype.put = () => { throw new DOMException("no room", "QuotaExceededError"); };
}"""
NO_DATABASE = (
    "Object.defineProperty(window, 'indexedDB', { get() { throw new DOMException('no', 'SecurityError'); } });"
)
NO_TEXTS = """for (const name of ["localStorage", "sessionStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });
}"""


def texts(page: WebPage, name: str) -> list[str]:
    return [text.strip() for text in page.get(name).all_inner_texts()]


def test_a_page_that_goes_away_before_anything_is_kept_loses_nothing(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.ask("kept")
    page.page.evaluate(NOTHING_IS_KEPT)
    page.ask("one")
    page.send(LONG)
    page.page.wait_for_function("() => [...document.querySelectorAll('.markdown')][2]?.textContent.length > 20")
    shown = texts(page, "markdown")
    page.page.reload()
    page.page.wait_for_function("() => document.querySelectorAll('[data-testid=markdown]').length === 3")
    assert texts(page, "user-text") == ["kept", "one", LONG.strip()]
    found = texts(page, "markdown")
    assert found[:2] == ["kept", "one"] and found[2].startswith(shown[2])
    assert texts(page, "stats")[2] == "stopped"
    assert page.page.evaluate("Object.keys(localStorage).filter(name => name.includes('unsaved'))") == []
    page.page.reload()
    page.page.wait_for_function("() => document.querySelectorAll('[data-testid=markdown]').length === 3")
    assert texts(page, "markdown") == found, "it was moved into the store"
    page.page.evaluate(NOTHING_IS_KEPT)
    page.get("conversation").hover()
    page.page.get_by_label("Delete kept").click()
    page.get("delete").click()
    page.get("conversation").wait_for(state="detached")
    page.page.reload()
    page.page.wait_for_selector(".conversations-empty")


def test_what_an_earlier_page_left_does_not_replace_a_later_change_or_bring_a_deleted_conversation_back(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    assert page.page.evaluate("""async () => {
      const { ConversationStore } = await import("/ui/chat/conversation_store.js");
      const { ConversationWriter } = await import("/ui/chat/conversation_writer.js");
      const store = new ConversationStore();
      const leave = async (id, revision, kept, messages) => {
        const hung = { save: () => new Promise(() => {}), messages: async () => kept };
        const writer = new ConversationWriter(hung);
        const conversation = await writer.read({ id, title: id, updated: 1, revision }, false);
        conversation.nodes = messages;
        writer.save(conversation, true);
        writer.flush();
      };
      const keep = (id, revision, seen, messages) => store.save({ id, updated: 1, revision }, messages, seen);
      const [one, two, three, four] = [1, 2, 3, 4].map((id) => ({ id, parent: [null, 1, 2, 1][id - 1] }));
      await keep("same", "r1", null, [one, two, three]);
      await leave("same", "r1", [one, two, three].slice(0, 2), [one, four]);
      await keep("changed", "r1", null, [one]);
      await leave("changed", "r1", [one], [one, two]);
      await keep("changed", "r2", "r1", [one, three]);
      await leave("deleted", "r1", [one], [one, two]);
      await leave("new", null, [], [one]);
      localStorage.setItem("chairlift.unsaved.bad", "{");
      await new ConversationWriter(store).recover();
      const all = await store.list();
      const messages = {};
      for (const { id } of all) messages[id] = (await store.messages(id)).map((each) => each.id);
      return [messages, Object.keys(localStorage).filter((name) => name.includes("unsaved"))];
    }""") == [{"same": [1, 4], "changed": [1, 3], "new": [1]}, []]


def test_a_full_storage_is_said_and_the_conversation_stays_until_there_is_room(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    page.ask("first")
    page.page.evaluate(FULL)
    page.get("new").click()
    page.ask("second")
    page.page.get_by_text("The browser's storage is full").wait_for()
    page.page.get_by_role("button", name="first", exact=True).click()
    page.page.wait_for_function("() => document.querySelector('.markdown')?.textContent.trim() === 'first'")
    page.page.get_by_role("button", name="second", exact=True).click()
    page.page.wait_for_function("() => document.querySelector('.markdown')?.textContent.trim() === 'second'")
    page.page.evaluate("() => { IDBObjectStore.prototype.put = window.put; }")
    page.ask("third")
    page.get("notice").wait_for(state="detached")
    page.page.reload()
    page.page.wait_for_function("() => document.querySelectorAll('[data-testid=markdown]').length === 2")
    assert texts(page, "markdown") == ["second", "third"]


@pytest.mark.parametrize("script", [NO_DATABASE, NO_DATABASE + NO_TEXTS])
def test_a_browser_without_storage_says_so_and_answers_all_the_same(
    open_page: OpenPage, echo_server: Server, script: str
) -> None:
    page = open_page(echo_server, script=script)
    page.page.get_by_text("This browser keeps no conversations in this window.").wait_for()
    page.ask("one")
    page.get("new").click()
    page.ask("two")
    page.page.get_by_role("button", name="one", exact=True).click()
    page.page.wait_for_function("() => document.querySelector('.markdown')?.textContent.trim() === 'one'")
    page.page.get_by_role("button", name="Close this notice").click()
    assert page.get("notice").count() == 0


def test_an_edit_survives_an_answer_that_comes_meanwhile_and_moves_it_out_of_sight(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    page.ask("one")
    page.page.locator(".user-message").first.hover()
    page.page.get_by_label("Edit message").first.click()
    page.get("editor").fill("edited")
    page.send("x" + "\n\nline" * 120)
    page.get("editor").wait_for(state="detached")
    page.page.wait_for_function("() => document.querySelectorAll('.markdown').length > 0")
    page.get("messages").evaluate("each => { each.scrollTop = 0; }")
    page.get("editor").wait_for()
    assert page.get("editor").input_value() == "edited"
    page.get("editor").press("Enter")
    assert page.get("stop").count() == 1, "the answer still comes"
    assert page.get("editor").input_value() == "edited"
    page.get("stop").click()
    page.get("stop").wait_for(state="detached")
    page.get("editor").press("Enter")
    page.page.wait_for_function("() => document.querySelector('.markdown')?.textContent.trim() === 'edited'")
    assert texts(page, "user-text") == ["edited"]


def test_a_conversation_that_is_read_late_replaces_neither_another_one_nor_an_answer_that_has_begun(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    assert (
        page.page.evaluate("""async () => {
      const { ChatModel } = await import("/ui/chat/chat_model.js");
      const events = async function* () { await new Promise(() => {}); yield 0; };
      const model = new ChatModel({ events }, () => "m");
      for (const id of ["a", "b"]) {
        await model.store.save({ id, title: id, updated: 1, parameters: {} }, [{ id: "1", role: "user", content: id }],
          null);
      }
      await model.load();
      const { store } = model;
      const { messages } = Object.getPrototypeOf(store);
      store.messages = async (id) => {
        const stored = await messages.call(store, id);
        await new Promise((resolve) => setTimeout(resolve, id === "a" ? 100 : 0));
        return stored;
      };
      let late = model.open("a");
      await model.open("b");
      await late;
      const outcomes = [model.current.id === "b"];
      late = model.open("a");
      await model.onOtherTab({ id: "b" });
      await late;
      outcomes.push(model.current.id === "a");
      late = model.onOtherTab({ id: "a" });
      model.send("x", "m");
      await late;
      outcomes.push(model.current === model.running.conversation("a"), model.current.messages.length === 3);
      model.create();
      model.running.drop("a");
      model.writer.forget("a");
      late = model.open("a");
      model.create();
      await late;
      outcomes.push(model.current.messages.length === 0);
      late = model.open("a");
      await model.remove("a");
      await late;
      return [...outcomes, model.current.id !== "a"];
    }""")
        == [True] * 6
    )
