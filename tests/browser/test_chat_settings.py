"""Settings of a conversation: checked values, a JSON schema, presets, and the meter of the context."""

from collections.abc import Callable
from typing import Any

import pytest

from support_browser import WebPage
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string"}, "population": {"type": "integer"}, "is_capital": '
    '{"type": "boolean"}}, "required": ["name", "population", "is_capital"], "additionalProperties": false}'
)


def texts(page: WebPage, name: str) -> list[str]:
    return [text.strip() for text in page.get(name).all_inner_texts()]


def settings_of(body: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in body.items() if name not in ("model", "stream", "stream_options", "messages")
    }


def open_settings(page: WebPage) -> None:
    page.page.get_by_role("button", name="Settings", exact=True).click()
    page.get("system-text").wait_for()


def test_a_wrong_value_has_a_sentence_and_nothing_is_sent_until_it_is_right(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    bodies = page.requests_to("/v1/chat/completions")
    open_settings(page)
    right = {"temperature": "0,5", "top_k": "40", "min_p": "0.05", "presence_penalty": "-1", "frequency_penalty": "0.5",
             "repetition_penalty": "1.1", "seed": "-3"}  # fmt: skip
    wrong = {
        "temperature": ("9", "Temperature must be a number from 0 to 2."),
        "top_k": ("1.5", "Top k must be a whole number of at least 0."),
        "min_p": ("x", "Min p must be a number from 0 to 1."),
        "seed": ("1e300", "Seed must be a whole number."),
        "presence_penalty": ("-3", "Presence penalty must be a number from -2 to 2."),
        "frequency_penalty": ("2.5", "Frequency penalty must be a number from -2 to 2."),
        "repetition_penalty": ("0", "Repetition penalty must be a number above 0 and at most 10."),
    }
    for name, (value, sentence) in wrong.items():
        page.get(name).fill(value)
        assert page.page.locator(f"#{name}-error").inner_text() == sentence
        assert page.get(name).get_attribute("aria-invalid") == "true"
    for name, (_, sentence) in wrong.items():
        page.send("not sent")
        assert page.get("notice").inner_text().strip() == f"Nothing was sent. {sentence}"
        assert page.get("composer").input_value() == "not sent", "the text is not lost"
        page.get(name).fill(right[name])
        assert page.page.locator(f"#{name}-error").inner_text() == ""
    page.get("reasoning_effort").select_option("low")
    page.ask("sent")
    assert [settings_of(body) for body in bodies] == [{
        "temperature": 0.5, "top_k": 40, "min_p": 0.05, "presence_penalty": -1, "frequency_penalty": 0.5,
        "repetition_penalty": 1.1, "seed": -3, "reasoning_effort": "low",
    }]  # fmt: skip
    assert page.page.get_by_text("The model has no use for: reasoning_effort").count() == 1
    for name in wrong:
        page.get(name).fill("")
    page.get("reasoning_effort").select_option("")
    page.get("stop-text").fill("\n".join("x" * 65))
    page.send("again")
    assert "There are 65 stop texts; the limit is 64." in page.get("notice").inner_text()
    page.get("stop-text").fill("")
    page.ask("again")
    assert settings_of(bodies[1]) == {}, "the server's defaults are not sent"


def test_an_answer_follows_a_json_schema_and_is_shown_in_lines(open_page: OpenPage, scripted_server: Server) -> None:
    page = open_page(scripted_server)
    bodies = page.requests_to("/v1/chat/completions")
    open_settings(page)
    for text, sentence in (('{"type"', "This is not valid JSON"), ("[]", "A JSON schema is a JSON object")):
        page.get("schema-text").fill(text)
        assert sentence in page.page.locator("#schema-error").inner_text()
        page.send("Describe Paris")
        assert f"Nothing was sent. JSON schema: {sentence}" in page.get("notice").inner_text()
    page.get("schema-text").fill(SCHEMA)
    page.ask("Describe Paris")
    shown = page.page.locator(".answer pre").inner_text().strip()
    assert shown == '{\n  "name": "Paris",\n  "population": 2100000,\n  "is_capital": true\n}'
    assert bodies[0]["response_format"]["type"] == "json_schema" and len(bodies) == 1
    page.get("max_tokens").fill("9")
    page.page.get_by_label("Answer again").click()
    page.get("not-continued").wait_for()
    assert page.page.locator(".answer pre").inner_text().strip() == '{"name":'
    page.get("new").click()
    assert page.get("schema-text").input_value() == "", "the schema stays with its conversation"


def test_presets_are_made_chosen_changed_renamed_and_deleted(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    bodies = page.requests_to("/v1/chat/completions")
    open_settings(page)
    button = page.page.get_by_role("button", name="Save as preset")
    for name, system, temperature in (("Poet", "Write in verse.", "1.5"), ("Clerk", "Be exact.", "0")):
        page.get("system-text").fill(system)
        page.get("temperature").fill(temperature)
        button.click()
        page.get("preset-name").fill(" ")
        page.get("preset-name").press("Enter")
        page.page.get_by_text("A preset needs a name.").wait_for()
        if name == "Clerk":
            page.get("preset-name").fill("Poet")
            page.get("preset-name").press("Enter")
            page.page.get_by_text("There is a preset “Poet” already").wait_for()
        page.get("preset-name").fill(name)
        page.get("preset-name").press("Enter")
        page.get("preset-name").wait_for(state="detached")
    page.get("new").click()
    options = page.get("preset").locator("option")
    assert [text.strip() for text in options.all_inner_texts()] == ["None", "Clerk", "Poet"]
    page.get("preset").select_option("Poet")
    assert page.get("system-text").input_value() == "Write in verse."
    page.ask("hello")
    assert bodies[0]["messages"][0] == {"role": "system", "content": "Write in verse."}
    assert settings_of(bodies[0]) == {"temperature": 1.5}
    page.get("top_k").fill("5")
    page.page.get_by_text("Poet (changed here)").wait_for(state="attached")
    page.page.get_by_role("button", name="Update preset").click()
    page.page.get_by_role("button", name="Rename").last.click()
    page.get("preset-name").fill("Bard")
    page.get("preset-name").press("Escape")
    assert page.get("system-text").count() == 1, "Escape leaves the settings open"
    page.page.get_by_role("button", name="Rename", exact=True).click()
    page.get("preset-name").fill("Bard")
    page.get("preset-name").press("Enter")
    page.page.reload()
    open_settings(page)
    assert page.get("preset").evaluate("each => each.selectedOptions[0].text.trim()") == "Bard", "kept, and chosen here"
    page.get("new").click()
    page.get("preset").select_option("Bard")
    assert page.get("top_k").input_value() == "5"
    focused = "document.activeElement.textContent.trim()"
    page.page.get_by_role("button", name="Delete", exact=True).click()
    assert page.page.evaluate(focused) == "Keep"
    page.page.keyboard.press("Escape")
    assert page.page.evaluate("document.activeElement.dataset.testid") == "preset", "which closes no settings"
    page.page.get_by_role("button", name="Delete", exact=True).click()
    page.page.get_by_role("button", name="Delete preset").click()
    assert page.page.evaluate("document.activeElement.dataset.testid") == "preset"
    assert [text.strip() for text in options.all_inner_texts()] == ["None", "Clerk"]
    assert page.get("system-text").input_value() == "Write in verse.", "the conversation keeps its settings"


def test_presets_that_do_not_fit_are_refused_and_other_tabs_see_changes(
    open_page: OpenPage, echo_server: Server
) -> None:
    page = open_page(echo_server)
    other = page.context.new_page()
    other.goto(f"{echo_server.url}/")
    other.get_by_role("button", name="Settings", exact=True).click()
    assert page.page.evaluate("""async () => {
      const { Presets } = await import("/ui/chat/presets.js");
      const presets = new Presets();
      const preset = (id, name, parameters = { system: id }) => ({ id, name, parameters });
      const errors = [presets.keep(preset("1", " One ")), presets.keep(preset("2", "One")),
        presets.keep(preset("2", "x".repeat(61)))];
      const added = [presets.add([preset("1", "One", { system: "1" }), preset("1", "One", { seed: 4 })]),
        presets.add([preset("1", "One", { seed: 4 })])];
      const setItem = Storage.prototype.setItem;
      Storage.prototype.setItem = () => { throw new DOMException("no room", "QuotaExceededError"); };
      errors.push(presets.keep(preset("3", "Three")));
      Storage.prototype.setItem = setItem;
      const names = presets.list.map(({ name }) => name);
      const many = Array.from({ length: 199 }, (_, index) => preset(`n${index}`, `n${index}`));
      errors.push(presets.add(many).error, presets.list.length);
      return [errors, added.map(({ count }) => count), names, new Presets().list.map(({ parameters }) => parameters)];
    }""") == [
        ["", "There is a preset “One” already; choose another name.", "A name has at most 60 characters.",
         "The browser's storage is full or forbidden: the presets stay as they were.",
         "The presets were not added: the limit is 200.", 2],
        [1, 0], ["One", "One (2)"], [{"system": "1"}, {"seed": 4}],
    ]  # fmt: skip
    other.get_by_text("One (2)").wait_for(state="attached")
    other.get_by_test_id("preset").select_option("1")
    other.get_by_role("button", name="Rename", exact=True).click()
    page.page.evaluate("""async () => {
      const { Presets } = await import("/ui/chat/presets.js");
      new Presets().remove("1");
    }""")
    other.locator("option", has_text="One (2)").wait_for(state="attached")
    other.get_by_text("One", exact=True).wait_for(state="detached")
    other.get_by_test_id("preset-name").fill("Again")
    other.get_by_test_id("preset-name").press("Enter")
    selected = other.get_by_test_id("preset").evaluate("each => each.selectedOptions[0].text.trim()")
    assert selected == "Again", "what another tab deletes while it is renamed here is kept"
    assert other.get_by_test_id("system-text").input_value() == "1"


def test_the_meter_says_what_is_used_and_left_and_warns(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    assert page.get("context").count() == 0, "nothing is known yet"
    page.ask("x" * 100)
    meter = page.page.get_by_role("meter")
    used = int(meter.get_attribute("aria-valuenow"))
    assert 200 < used < 240, "prompt and answer"
    assert page.get("context").inner_text().strip() == f"{used} of 16.4k tokens of context used, 16.2k left"
    assert meter.get_attribute("aria-valuemax") == "16384" and meter.get_attribute("aria-label") == "Context used"
    assert page.page.evaluate("""async () => {
      const { contextOf, ContextMeter } = await import("/ui/chat/context_meter.js");
      const { html, render } = await import("/ui/lib/html.js");
      const user = { role: "user" };
      const answer = (prompt, output) => ({
        role: "assistant", usage: { prompt_tokens: prompt, completion_tokens: output },
      });
      const frame = document.createElement("div");
      const text = (messages, limit) => {
        render(html`<${ContextMeter} messages=${messages} limit=${limit} />`, frame);
        return frame.textContent.trim();
      };
      return [contextOf([user], 100), contextOf([answer(5, 5), user, answer(20, 10), user, { role: "assistant" }], 100),
        text([answer(20, 10)]), text([answer(20, 10)], 100), text([answer(80, 11)], 100), text([answer(90, 11)], 100)];
    }""") == [
        None, {"used": 30, "limit": 100, "left": 70, "isLittle": False}, "30 tokens of context used",
        "30 of 100 tokens of context used, 70 left", "91 of 100 tokens of context used: only 9 are left.",
        "101 of 100 tokens of context used: the context is full. Begin a new conversation or edit an earlier message.",
    ]  # fmt: skip
