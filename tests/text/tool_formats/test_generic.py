"""GENERIC: the response comes back as text while it streams, and the prompt explains the tools."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.text.tool_formats.base import TextDelta
from chairlift.text.tool_formats.generic import GENERIC, prompt_of, with_prompt, without_calls
from support_shares import for_each
from support_tool_formats import Merged, check_every_split, read

FX, G = ("f", '{"x": 1}'), ("g", "{}")
F = '{"name": "f", "arguments": {"x": 1}}'

ANSWERS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("Hello.", "Hello.", []),
    ('{"response": "Hello."}', "Hello.", []),
    ('{ "response" : "" }', "", []),
    ('{"response": "a\\n\\"b\\" \\u00e9 \\ud83d\\ude00 \\/ \\\\ {}"}', 'a\n"b" é 😀 / \\ {}', []),
    ('{"response": "\\ud83d!\\ude00\\ud83d"}', "\ufffd!\ufffd\ufffd", []),
    ('{"response": "\\uzzzz\\q"}', "\ufffdq", []),
    ('{"response": "cut o', "cut o", []),
    ('{"response": "cut \\u00', "cut ", []),
    ('{"response": "a"} b', "a b", []),
    (f'{{"tool_calls": [{F}]}}', "", [FX]),
    (f'{{"tool_calls": [{F}, {{"name": "g"}}]}}', "", [FX, G]),
    (f'{{"tool_calls": [{F}, {{"na', '{"na', [FX]),
    ('{"tool_calls": []}', '{"tool_calls": []}', []),
    ('{"response": 5}', '{"response": 5}', []),
    ('{"tool_calls": "x"}', '{"tool_calls": "x"}', []),
    ('{"other": 5}', '{"other": 5}', []),
    ('{"resp', '{"resp', []),
    ('```json\n{"response": "a ``` b"}\n```', "a ``` b", []),
    (f'```\n{{"tool_calls": [{F}]}}\n```', "", [FX]),
    ("```json\n[1]\n```", "```json\n[1]\n```", []),
    ("{}", "{}", []),
]


@for_each(("answer", "text", "calls"), ANSWERS)
def test_an_answer_is_read_the_same_however_it_is_split(answer: str, text: str, calls: list[tuple[str, str]]) -> None:
    check_every_split(GENERIC, answer, Merged(text, tuple(calls)))


@given(st.text(max_size=20), st.booleans())
def test_any_response_comes_back(text: str, ascii_only: bool) -> None:
    assert read(GENERIC, *json.dumps({"response": text}, ensure_ascii=ascii_only)).text == text


def test_the_response_comes_at_once() -> None:
    parser = GENERIC.make_parser({})
    assert parser.push('{"response": "Hel') == [TextDelta("Hel")]
    assert parser.push("lo\\") == [TextDelta("lo")]
    assert parser.push('n"') == [TextDelta("\n")]


TOOLS = [{"type": "function", "function": {"name": "f", "description": "é"}}]
PROMPT = prompt_of(TOOLS)


def test_the_prompt_has_the_tools_and_both_forms_of_an_answer() -> None:
    assert '[{"name": "f", "description": "é"}]' in PROMPT
    assert '{"tool_calls": [{"name": ' in PROMPT and '{"response": ' in PROMPT


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
