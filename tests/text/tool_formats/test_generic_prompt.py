"""with_prompt: the first message explains the tools; without_calls: calls and their results become text."""

import json
from typing import Any

import pytest

from chairlift.text.tool_formats.generic_prompt import prompt_of, with_prompt, without_calls
from support_shares import for_each

TOOLS = [{"type": "function", "function": {"name": "f", "description": "é"}}]

PROMPT = prompt_of(TOOLS)


@for_each(
    ("messages", "has_system_role", "expected"),
    [
        ([{"role": "user", "content": "x"}], True,
         [{"role": "system", "content": PROMPT}, {"role": "user", "content": "x"}]),
        ([{"role": "user", "content": "x"}], False, [{"role": "user", "content": f"{PROMPT}\n\nx"}]),
        ([{"role": "system", "content": "x"}], True, [{"role": "system", "content": f"{PROMPT}\n\nx"}]),
        ([{"role": "system", "content": ""}], True, [{"role": "system", "content": PROMPT}]),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], False,
         [{"role": "user", "content": [{"type": "text", "text": PROMPT}, {"type": "text", "text": "x"}]}]),
        ([{"role": "assistant", "content": "x"}], False,
         [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "x"}]),
        ([], True, [{"role": "system", "content": PROMPT}]),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], False,
         [{"role": "user", "content": f"{PROMPT}\n\ns\n\nu"}]),
        ([{"role": "system", "content": [{"type": "text", "text": "s"}]}, {"role": "user", "content": "u"}], False,
         [{"role": "user", "content": [{"type": "text", "text": text} for text in (PROMPT, "s", "u")]}]),
    ],
)  # fmt: skip
def test_the_prompt_stands_in_the_first_message(messages: Any, has_system_role: bool, expected: Any) -> None:
    assert with_prompt(messages, TOOLS, has_system_role=has_system_role) == expected


def test_calls_and_their_results_become_text() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": {"x": 1}}} for name in "fg"]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"}, {"role": "user", "content": "u"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "f", "content": "5"},
        {"role": "tool", "tool_call_id": "g", "content": "6"}, {"role": "assistant", "content": "so"},
    ]  # fmt: skip
    before = json.dumps(messages)
    result = with_prompt(messages, TOOLS, has_system_role=True)
    assert [each["role"] for each in result] == ["system", "user", "assistant", "user", "assistant"]
    text, _, written = result[2]["content"].partition("\n\n")
    assert text == "I look." and json.loads(written) == {
        "tool_calls": [{"name": name, "arguments": {"x": 1}} for name in "fg"]
    }
    assert json.loads(result[3]["content"]) == {
        "tool_results": [{"tool_call_id": "f", "content": "5"}, {"tool_call_id": "g", "content": "6"}]
    }
    assert json.dumps(messages) == before


def test_results_and_a_message_of_the_user_beside_them_are_one_message() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "u"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "user", "content": "1"}, {"role": "tool", "tool_call_id": "a", "content": "5"},
        {"role": "user", "content": [{"type": "text", "text": "2"}]}, {"role": "user", "content": "3"},
    ]  # fmt: skip
    *before, joined, last = without_calls(messages)
    result = '{"tool_results": [{"tool_call_id": "a", "content": "5"}]}'
    assert [each["role"] for each in before] == ["user", "assistant"] and before[1]["content"].startswith("{")
    assert joined == {
        "role": "user", "content": [{"type": "text", "text": text} for text in (f"1\n\n{result}", "2")],
    }  # fmt: skip
    assert last == messages[-1], "the client's own messages stay"


@pytest.mark.parametrize("content", [5, {"a": 1}, [5], True])
def test_a_content_that_is_no_text_is_left_to_the_checks_of_the_template(content: Any) -> None:
    [message] = with_prompt([{"role": "user", "content": content}], TOOLS, has_system_role=False)
    assert message["content"][-1] == (content if not isinstance(content, list) else 5)
