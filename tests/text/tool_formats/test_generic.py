"""GENERIC: the response comes back as text while it streams, and the prompt explains the tools."""

import json

from hypothesis import given
from hypothesis import strategies as st

from chairlift.text.tool_formats.generic import GENERIC
from chairlift.text.tool_formats.generic_prompt import prompt_of
from chairlift.text.tool_formats.tool_call_parser import TextDelta
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
