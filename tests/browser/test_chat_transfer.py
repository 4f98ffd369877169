"""Export, import and search: files of conversations, and texts that are found in all of them."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support_browser import WebPage
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]
MANY = """async (count) => {
  const { ConversationStore } = await import("/ui/chat/conversation_store.js");
  const store = new ConversationStore();
  for (let number = 0; number < count; number += 1) {
    const messages = Array.from({ length: 20 }, (_, index) => ({ id: `${number}-${index}`, toolCalls: [], reasoning: "",
      role: index % 2 ? "assistant" : "user", content: `Text ${number} of message ${index}. ${"word ".repeat(100)}` }));
    messages[15].content += number % 100 === 7 ? "Here is a Needle in the hay." : "";
    await store.save({ id: `c${number}`, title: `Title ${number}`, updated: number, revision: "r", parameters: {} },
      messages, null);
  }
}"""
PARSE = """async (texts) => {
  const { MAX_FILE_BYTES, parseFile, readFile } = await import("/ui/chat/conversation_file.js");
  const errors = [];
  for (const text of texts) {
    try {
      parseFile(text);
      errors.push("");
    } catch (error) {
      errors.push(`${error.constructor.name}: ${error.message}`);
    }
  }
  const broken = { size: 1, text: () => Promise.reject(new Error("gone")) };
  for (const file of [{ size: MAX_FILE_BYTES + 1 }, broken]) {
    await readFile(file).catch((error) => errors.push(error.message));
  }
  return errors;
}"""


def texts(page: WebPage, name: str) -> list[str]:
    return [text.strip() for text in page.get(name).all_inner_texts()]


def saved(page: WebPage, *buttons: str) -> tuple[str, str]:
    """Press buttons, and return the name and the text of the file that the last one saves."""
    for name in buttons[:-1]:
        page.page.get_by_role("button", name=name, exact=True).click()
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name=buttons[-1], exact=True).click()
    return download.value.suggested_filename, Path(download.value.path()).read_text(encoding="utf-8")


def import_text(page: WebPage, text: str) -> str:
    """Import a file, and return what the page says about it."""
    name = f"{uuid.uuid4()}.json"
    page.get("import").set_input_files([{"name": name, "mimeType": "application/json", "buffer": text.encode()}])
    message = page.page.get_by_text(f"{name}: ")
    message.wait_for()
    return str(message.inner_text()).removeprefix(f"{name}: ")


def test_what_is_exported_is_imported_in_another_browser_and_not_twice(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    page.page.get_by_role("button", name="Settings", exact=True).click()
    page.get("system-text").fill("Be brief.")
    page.get("seed").fill("5")
    page.page.get_by_role("button", name="Save as preset").click()
    page.get("preset-name").fill("Brief")
    page.get("preset-name").press("Enter")
    page.ask("one/two: three?")
    page.page.get_by_label("Answer again").click()
    page.get("versions").wait_for()
    page.wait_for_answers(1)
    name, markdown = saved(page, "Export this conversation", "Markdown")
    assert name == "one-two-three.md"
    head, answer = markdown.split("\n\n## Answer of scripted\n\n")
    assert (head, answer) == ("# one/two: three?\n\n## System prompt\n\nBe brief.\n\n## You\n\none/two: three?",
                              "one/two: three?\n")  # fmt: skip
    name, single = saved(page, "Export this conversation", "JSON")
    assert name == "one-two-three.json" and len(json.loads(single)["conversations"][0]["messages"]) == 3
    page.get("new").click()
    page.ask("second")
    name, both = saved(page, "Export all")
    value = json.loads(both)
    assert (value["format"], value["version"]) == ("chairlift.conversations", 1)
    assert [len(each["messages"]) for each in value["conversations"]] == [2, 3]
    assert import_text(page, both).startswith(
        "0 conversations and 0 presets were imported. 2 conversations of the file"
    )

    other = open_page(echo_server)
    value["future"] = value["conversations"][1]["messages"][0]["future"] = {"unknown": True}
    assert import_text(other, json.dumps(value)) == "2 conversations and 1 preset were imported."
    assert texts(other, "conversation") == ["second", "one/two: three?"]
    other.page.get_by_role("button", name="one/two: three?", exact=True).click()
    other.get("versions").wait_for()
    assert texts(other, "versions") == ["2 / 2"] and texts(other, "markdown") == ["one/two: three?"]
    other.page.get_by_role("button", name="Settings", exact=True).click()
    assert other.get("system-text").input_value() == "Be brief." and other.get("seed").input_value() == "5"
    assert other.get("preset").evaluate("each => each.selectedOptions[0].text.trim()") == "Brief"
    assert "1 conversation of the file is here already" in import_text(other, single)

    changed = json.loads(single)
    changed["conversations"][0]["messages"][0]["content"] = "changed"
    assert import_text(other, json.dumps(changed)) == "1 conversation and 0 presets were imported."
    assert "0 conversations" in import_text(other, json.dumps(changed))
    assert sorted(texts(other, "conversation")) == ["one/two: three?"] * 2 + ["second"], "nothing was overwritten"
    assert texts(other, "user-text") == ["one/two: three?"]
    assert import_text(other, "{").startswith("Nothing was imported. The file is not valid JSON")
    other.page.reload()
    other.get("conversation").first.wait_for()
    assert other.get("conversation").count() == 3


def test_a_file_that_is_wrong_is_refused_with_its_reason(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    user = {"id": "a", "role": "user", "content": "x"}

    def file(**fields: Any) -> str:
        return json.dumps({"format": "chairlift.conversations", "version": 1, **fields})

    def one(*messages: Any, **fields: Any) -> str:
        return file(conversations=[{"id": "c", "messages": list(messages), **fields}])

    cases = {
        file(): "",
        one(user): "",
        one(user, {**user, "id": "b", "parent": "a"}, leaf="a", title="t", x=1): "",
        '{"a": ': "The file is not valid JSON",
        "[]": "The file is no export of this page",
        "{}": "The file is no export",
        file(version=2): "The file has version 2 of the format; this page reads up to version 1.",
        file(version="1"): "The file's version is no whole number",
        file(conversations={}): "conversations are no list",
        file(presets=1): "presets are no list",
        file(conversations=[1]): "Conversation 1 of the file is no object.",
        one(): "Conversation 1 has no list of messages.",
        one(user, id=7): "Conversation 1: the id must be a text",
        one(user, title=7): "Conversation 1: the title must be a text",
        one(user, updated="x"): "must be a number",
        one(user, parameters=[]): "the parameters must be an object",
        one(user, leaf="z"): "no message has the id of its",
        one(user, 7): "Conversation 1, message 2 is no object.",
        one(user, user): "an earlier message has the same id",
        one({**user, "role": "system"}): "message 1: the role must be one of user, assistant, tool.",
        one({**user, "content": None}): "message 1: the content must be a text.",
        one({**user, "parent": "z"}): "message 1: its parent is no earlier message.",
        one({**user, "reasoning": 1}): "“reasoning” must be a text",
        one({**user, "files": [{"name": "n"}]}): "“files” must be a list of objects with id, name, size and text.",
        one({**user, "toolCalls": [{"id": 1}]}): "“toolCalls” must be a list of objects",
        file(presets=[{"id": "p", "name": "", "parameters": {}}]): "Preset 1: the name must be a text.",
        file(presets=[{"id": "p", "name": "n"}]): "Preset 1: the parameters must be an object.",
        file(presets=[1] * 201): "The file has 201 presets; the limit is 200.",
    }
    *errors, too_large, unreadable = page.page.evaluate(PARSE, list(cases))
    for error, expected in zip(errors, cases.values(), strict=True):
        assert error.startswith("BadFile: ") == bool(expected) and expected in error
    assert too_large == "The file has 201 MB; the limit is 200 MB." and unreadable == "The file could not be read."


def test_hostile_ids_and_texts_of_a_file_are_shown_as_text_and_old_rates_without_time_are_not(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    mark = "<img src=x onerror=alert(1)>"
    file = {"id": mark, "name": f'"><script>{mark}.txt', "size": 3, "text": mark}
    call = {"id": "constructor", "name": mark, "text": mark}
    stats = {"ttft": 0.1, "tokens": 40, "isCounted": True, "prompt": 5, "cached": 0}
    answer = {"role": "assistant", "content": f"text {mark}", "error": {"message": mark, "retryAfter": {}}}
    messages = [
        {"id": "__proto__", "role": "user", "content": mark, "files": [file]},
        {**answer, "id": "toString", "stats": {**stats, "rate": 30_000}, "reasoning": mark, "isStopped": {}},
        {"id": "constructor", "role": "user", "content": "second"},
        {**answer, "id": "valueOf", "stats": {**stats, "rate": 13}, "model": mark, "usage": {"prompt_tokens": mark}},
        {"id": "hasOwnProperty", "role": "user", "content": "third"},
        {"id": '"]', "role": "assistant", "content": "", "toolCalls": [call, {**call, "name": "second"}],
         "stats": {**stats, "rate": 1, "seconds": {}}},
    ]  # fmt: skip
    text = json.dumps({
        "format": "chairlift.conversations", "version": 1, "presets": [
            {"id": "__proto__", "name": mark, "parameters": {"seed": 7, "preset": "other", "top_p": None, mark: 1}}],
        "conversations": [{"id": "__proto__", "title": mark, "leaf": "constructor", "messages": messages}],
    })  # fmt: skip
    text = text.replace('"leaf"', '"__proto__": {"current": true, "isRunning": true}, "leaf"')
    assert import_text(page, text) == "1 conversation and 1 preset were imported."
    page.get("search").fill("onerror")
    page.page.get_by_text("Found in 1 conversation.").wait_for()
    page.page.locator(".hit").first.click()
    page.get("user-text").nth(2).wait_for()
    assert texts(page, "user-text") == [mark, "second", "third"], "no editor is open, and all messages are there"
    assert ["tokens/s" in each for each in texts(page, "stats")] == [False, True, False]
    for number in (0, 1):
        page.page.get_by_test_id("tool-call").nth(number).locator("textarea").fill(f"result {number}")
    bodies = page.requests_to("/v1/chat/completions")
    page.page.get_by_role("button", name="Send results").click()
    page.wait_for_answers(4)
    assert [each["content"] for each in bodies[0]["messages"][-2:]] == ["result 0", "result 1"]
    page.page.get_by_role("button", name="Settings", exact=True).click()
    page.get("preset").select_option("__proto__")
    assert page.get("preset").evaluate("each => each.selectedOptions[0].text.trim()") == mark, "nothing has changed"
    assert page.get("seed").input_value() == "7"
    assert page.page.evaluate("[{}.current, {}.isRunning, document.querySelectorAll('img:not([src^=ui])').length]") == [
        None, None, 0,
    ]  # fmt: skip


def test_an_import_of_many_conversations_is_one_change_for_other_tabs(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    other = page.context.new_page()
    other.goto(f"{echo_server.url}/")
    other.get_by_test_id("composer").wait_for()
    other.evaluate("""() => {
      window.changes = [];
      window.channel = new BroadcastChannel("chairlift.conversations");
      window.channel.onmessage = ({ data }) => window.changes.push(data.ids.length);
    }""")
    entries = [{"id": f"{n}", "messages": [{"id": "m", "role": "user", "content": f"{n}"}]} for n in range(200)]
    text = json.dumps({"format": "chairlift.conversations", "version": 1, "conversations": entries})
    assert import_text(page, text) == "200 conversations and 0 presets were imported."
    other.wait_for_function("() => document.querySelectorAll('[data-testid=conversation]').length === 200")
    assert other.evaluate("window.changes") == [200]


def test_a_full_storage_stops_an_import_and_loses_nothing(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.ask("here")
    page.page.evaluate("""() => {
      const { put } = IDBObjectStore.prototype;
      let count = 0;
      IDBObjectStore.prototype.put = function (...values) {
        count += 1;
        if (count > 2) throw new DOMException("no room", "QuotaExceededError");
        return put.apply(this, values);
      };
    }""")
    entries = [{"id": f"{n}", "title": f"title {n}", "messages": [{"id": "a", "role": "user", "content": f"{n}"}]}
               for n in range(3)]  # fmt: skip
    text = json.dumps({"format": "chairlift.conversations", "version": 1, "conversations": entries})
    assert import_text(page, text) == (
        "1 conversation and 0 presets were imported. The browser's storage is full: the rest was not imported. Delete "
        "conversations first."
    )
    page.page.reload()
    page.get("conversation").first.wait_for()
    assert sorted(texts(page, "conversation")) == ["here", "title 0"]


def test_five_hundred_conversations_are_searched_with_the_keyboard(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.page.evaluate(MANY, 500)
    page.page.reload()
    page.get("conversation").first.wait_for()
    page.get("search").focus()
    page.page.keyboard.type("a needle IN")
    page.page.get_by_text("Found in 5 conversations.").wait_for()
    assert page.page.locator(".hit mark").all_inner_texts() == ["a Needle in"] * 5
    hit = page.page.locator(".hit").first.inner_text()
    assert hit.startswith("Answer …") and hit.endswith("a Needle in the hay.")
    for _ in range(4):
        page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowUp")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("Enter")
    page.page.wait_for_function("() => document.activeElement.dataset.message === '307-15'")
    assert page.page.locator("h1").inner_text() == "Title 307"
    box, frame = (page.page.locator(each).bounding_box() for each in ("[data-message='307-15']", ".messages"))
    assert box and frame and frame["y"] - 1 <= box["y"] < frame["y"] + frame["height"], "it is in sight"
    page.get("search").fill("title 49")
    page.page.get_by_text("Found in 11 conversations.").wait_for()
    assert page.page.locator(".search-results .conversation mark").first.inner_text() == "Title 49"
    page.get("search").fill("of message 3.")
    page.page.get_by_text("Found in 500 conversations; the first 100 are shown.").wait_for()
    page.get("search").fill("not there")
    page.page.get_by_text("Nothing was found.").wait_for()
    page.page.keyboard.press("Escape")
    page.page.get_by_text("Nothing was found.").wait_for(state="detached")
    assert page.get("search").input_value() == "" and page.get("conversation").count() == 500
    page.get("conversation").first.hover()
    page.page.get_by_label("Rename Title 499").click()
    page.page.keyboard.press("ArrowDown")
    assert page.page.get_by_label("Title of the conversation").evaluate("each => each === document.activeElement")


def test_a_search_finds_what_has_just_changed_and_other_versions(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.ask("alpha")
    page.get("search").fill("beta")
    page.page.get_by_text("Nothing was found.").wait_for()
    page.page.get_by_label("Edit message").first.click(force=True)
    page.get("editor").fill("beta")
    page.get("editor").press("Enter")
    page.page.get_by_text("Found in 1 conversation.").wait_for()
    page.wait_for_answers(1)
    page.get("search").fill("ALPHA")
    page.page.locator(".hit", has_text="alpha").first.click()
    page.page.get_by_text("1 / 2").wait_for()
    assert texts(page, "user-text") == ["alpha"]
    assert page.page.evaluate("""async () => {
      const { ConversationSearch } = await import("/ui/chat/conversation_search.js");
      const messages = [{ id: "m", content: `${"İ".repeat(3)} and a ${"long ".repeat(20)} Straße` }];
      const search = new ConversationSearch({ messagesOf: async () => [messages] });
      const find = async (query) => (await search.find(query, [{ id: "c", title: "x", updated: 1 }]))[0]?.hits[0];
      return [await find("STRASSE"), (await find("straße")).match, (await find("and")).match, await find(" ")];
    }""") == [None, "straße", "and", None]


def test_markdown_of_every_kind_of_message_and_files_of_messages(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    files = [{"id": "f", "name": "notes`.txt", "size": 9, "text": "a\n```\nb\n"}]
    messages = [
        {"id": "1", "role": "user", "content": " Question? ", "files": files},
        {"id": "2", "role": "assistant", "content": "", "reasoning": "I\n\nreason.", "model": "m",
         "toolCalls": [{"id": "c", "name": "look", "text": '{"a": 1}'}]},
        {"id": "3", "role": "tool", "toolCallId": "c", "content": "result"},
        {"id": "4", "role": "assistant", "content": '{"b": 2}', "isJson": True, "toolCalls": []},
    ]  # fmt: skip
    markdown, back, is_same = page.page.evaluate(
        """async (nodes) => {
          const { fenced, markdownOf } = await import("/ui/chat/conversation_markdown.js");
          const { fileText, fingerprintOf, parseFile } = await import("/ui/chat/conversation_file.js");
          const entry = { id: "c", title: "A\\nB", updated: 1, parameters: { seed: 3, top_p: 7, other: 1 }, nodes };
          const [back] = parseFile(fileText([entry], [])).conversations;
          const [first, ...others] = nodes;
          const file = { ...first.files[0], text: "other" };
          const changed = [{ ...first, files: [file] }, ...others];
          fenced("` ".repeat(500_000)); // it raises nothing
          return [markdownOf({ ...entry, messages: nodes }), back,
            [back.nodes, changed].map((each) => fingerprintOf(each) === fingerprintOf(back.nodes))];
        }""",
        messages,
    )
    assert markdown == (
        "# A B\n\n## You\n\nFile `notes.txt`:\n\n````\na\n```\nb\n````\n\nQuestion?\n\n## Answer of m\n\n"
        '> Reasoning:\n>\n> I\n>\n> reason.\n\nTool call `look`:\n\n```json\n{"a": 1}\n```\n\n'
        "## Tool result\n\n```\nresult\n```\n\n## Answer\n\n"
        '```json\n{"b": 2}\n```\n'
    )
    assert [node["parent"] for node in back["nodes"]] == [None, "1", "2", "3"] and back["leaf"] == "4"
    assert back["nodes"][0]["files"] == files and back["parameters"] == {"seed": 3} and is_same == [True, False]
