"""The chat view: answers of the demo model, stop, retry, edit, settings, tools, reasoning, and kept conversations."""

import re
from collections.abc import Callable

import pytest

from support_browser import WebPage
from support_server import Server

pytestmark = pytest.mark.browser
OpenPage = Callable[..., WebPage]
LONG = "This sentence is long enough to be stopped in the middle of it. " * 12


def texts(page: WebPage, name: str) -> list[str]:
    return [text.strip() for text in page.get(name).all_inner_texts()]


def test_an_answer_of_the_demo_model_shows_its_tokens_speed_and_time_to_first_token(
    open_page: OpenPage, demo_server: Server
) -> None:
    page = open_page(demo_server)
    bodies = page.requests_to("/v1/chat/completions")
    assert page.ask("Tell me a long story about a fox and a lamp.")
    assert re.search(r"\d+ tokens?\s*([\d.]+ tokens/s\s*)?first token [\d.]+ m?s\s*\d+ prompt", texts(page, "stats")[0])
    page.ask("Tell me more.")
    assert [message["role"] for message in bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert bodies[1]["model"] == "chairlift-demo" and bodies[1]["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": True,
    }
    assert page.page.locator(".state").inner_text().endswith("Ready")
    assert page.page.locator(".model").inner_text() == "chairlift-demo"
    assert "The answer is complete" in page.get("announcer").inner_text()


def test_stop_ends_the_answer_and_the_work_of_the_server(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.send(LONG)
    page.page.wait_for_function("() => document.querySelector('.markdown')?.textContent.length > 20")
    page.page.wait_for_timeout(200)
    page.get("stop").click()
    page.wait_for_answers(1)
    assert re.match(r"stopped\s*\d+ tokens\s*\d+ tokens/s", texts(page, "stats")[0])
    shown = page.get("markdown").inner_text()
    assert LONG.startswith(shown.rstrip()) and len(shown) < len(LONG) - 50
    assert page.ask("short").startswith("short")
    assert echo_server.metric("sequences_running") == 0


def test_retry_generates_the_answer_again(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    bodies = page.requests_to("/v1/chat/completions")
    page.ask("one")
    page.ask("two")
    page.page.get_by_label("Answer again").first.click()
    page.page.wait_for_function("() => document.querySelectorAll('article').length === 2")
    page.wait_for_answers(1)
    assert texts(page, "user-text") == ["one"] and texts(page, "markdown") == ["one"]
    assert [len(body["messages"]) for body in bodies] == [1, 3, 1]


def test_an_edited_message_replaces_what_came_after_it(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.ask("one")
    page.ask("two")
    page.page.locator(".user-message").first.hover()
    page.page.get_by_label("Edit message").first.click()
    page.get("editor").fill("three")
    page.get("editor").press("Enter")
    page.page.wait_for_function("() => document.querySelector('.markdown')?.textContent.trim() === 'three'")
    page.wait_for_answers(1)
    assert texts(page, "user-text") == ["three"] and texts(page, "markdown") == ["three"]


def test_reload_keeps_conversations_which_can_be_renamed_and_deleted(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.ask("the first one")
    page.get("new").click()
    page.page.wait_for_selector(".welcome")
    page.ask("the second one")
    page.page.reload()
    page.page.wait_for_selector("[data-testid=markdown]")
    assert texts(page, "markdown") == ["the second one"]
    assert texts(page, "conversation") == ["the second one", "the first one"]
    page.get("conversation").last.hover()
    page.page.get_by_label("Rename the first one").click()
    page.page.get_by_label("Title of the conversation").fill("renamed")
    page.page.keyboard.press("Enter")
    page.page.get_by_role("button", name="renamed", exact=True).click()
    page.page.wait_for_function("() => document.querySelector('.markdown').textContent.trim() === 'the first one'")
    page.get("conversation").filter(has_text="the second one").hover()
    page.page.get_by_label("Delete the second one").click()
    page.get("delete").click()
    page.page.wait_for_function("() => document.querySelectorAll('[data-testid=conversation]').length === 1")
    page.page.reload()
    page.page.wait_for_selector("[data-testid=markdown]")
    assert texts(page, "conversation") == ["renamed"] and texts(page, "markdown") == ["the first one"]


def test_a_page_that_was_closed_during_an_answer_keeps_what_had_come(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    page.send(LONG)
    page.page.wait_for_function("() => document.querySelector('.markdown')?.textContent.length > 20")
    page.page.reload()
    page.page.wait_for_selector("[data-testid=stats]")
    assert texts(page, "user-text") == [LONG.strip()] and texts(page, "stats") == ["stopped"]
    assert page.get("stop").count() == 0


def test_settings_are_sent_and_the_token_limit_is_shown(open_page: OpenPage, echo_server: Server) -> None:
    page = open_page(echo_server)
    bodies = page.requests_to("/v1/chat/completions")
    page.page.get_by_role("button", name="Settings").click()
    values = {"system-text": "Be brief.", "temperature": "0.5", "top_p": "0.9", "max_tokens": "3", "seed": "7"}
    for name, value in values.items():
        page.get(name).fill(value)
    page.page.get_by_label("Stop texts, one a line").fill("END\nSTOP")
    page.get("tools-text").fill("[{]")
    assert "not valid JSON" in page.page.locator("#tools-error").inner_text()
    page.get("tools-text").fill("")
    page.ask("abcdef")
    assert texts(page, "markdown") == ["abc"] and "ended at the token limit" in texts(page, "stats")[0]
    sent = {name: value for name, value in bodies[0].items() if name not in ("model", "stream", "stream_options")}
    assert sent == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "abcdef"}],
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 3, "seed": 7, "stop": ["END", "STOP"],
    }  # fmt: skip
    page.get("new").click()
    page.ask("again")
    assert bodies[1]["max_tokens"] == 3 and len(bodies[1]["messages"]) == 1, "the system prompt stays behind"


TOOLS = (
    '[{"type": "function", "function": {"name": "get_weather", "parameters": '
    '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]'
)


def test_tool_calls_are_cards_and_their_results_go_back(open_page: OpenPage, scripted_server: Server) -> None:
    page = open_page(scripted_server)
    bodies = page.requests_to("/v1/chat/completions")
    page.page.get_by_role("button", name="Settings").click()
    page.get("tools-text").fill(TOOLS)
    page.send("think about the weather in Rome")
    page.page.wait_for_selector("text=Send result")
    card = page.get("tool-call").inner_text()
    assert "get_weather" in card and '"city": "Rome"' in card
    page.page.locator(".reasoning summary").click()
    assert page.page.locator(".reasoning-text").inner_text() == "I need the weather."
    page.page.get_by_label("Result of get_weather").fill("rainy in Rome")
    page.page.get_by_role("button", name="Send result").click()
    page.page.wait_for_selector("[data-testid=markdown]")
    assert texts(page, "markdown") == ["It is rainy in Rome."]
    call, result = bodies[1]["messages"][1:]
    assert call["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    assert result == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "rainy in Rome"}


def test_reasoning_is_folded_after_the_answer(open_page: OpenPage, scripted_server: Server) -> None:
    page = open_page(scripted_server)
    answer = page.ask("How many legs have two cats?")
    assert "Eight." in answer and "A cat has 4 legs" not in answer
    page.page.locator(".reasoning summary").click()
    assert "A cat has 4 legs." in page.page.locator(".reasoning-text").inner_text()
    assert texts(page, "markdown") == ["Eight."]


@pytest.mark.parametrize("phone", [False, True])
def test_the_keyboard_alone_is_enough(open_page: OpenPage, echo_server: Server, phone: bool) -> None:
    page = open_page(echo_server, phone=phone)
    page.get("composer").focus()
    page.page.keyboard.type("first line")
    page.page.keyboard.press("Shift+Enter")
    page.page.keyboard.type("second line")
    page.page.keyboard.press("Enter")
    page.wait_for_answers(1)
    assert texts(page, "user-text") == ["first line\nsecond line"]
    page.send(LONG)
    page.page.keyboard.press("Escape")
    page.wait_for_answers(2)
    assert texts(page, "stats")[1].startswith("stopped")
