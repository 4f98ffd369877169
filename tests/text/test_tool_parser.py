"""ToolCallParser: the parsed parts do not depend on the deltas, no text is lost, and arguments are streamed."""

import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.text.tool_parser import (
    HERMES,
    LLAMA3,
    MISTRAL,
    START_MARKERS,
    Piece,
    TextDelta,
    ToolCallArguments,
    ToolCallParser,
    ToolCallStart,
    detect_tool_format,
)
from support_engine import FULL

F = '{"name": "f", "arguments": {"x": 1}}'
G = '{"name": "g", "arguments": {"y": "a}b\\"{,", "z": [1, {"k": null}]}}'
FX, GY = ("f", '{"x": 1}'), ("g", '{"y": "a}b\\"{,", "z": [1, {"k": null}]}')


def parse(tool_format: str, *deltas: str) -> list[Piece]:
    parser = ToolCallParser(tool_format)
    return [*(piece for delta in deltas for piece in parser.push(delta)), *parser.flush()]


def join_pieces(parts: list[Piece]) -> tuple[str, list[tuple[str, str]]]:
    """Return the joined text, and the name and arguments of each call."""
    text, calls = "", []
    for piece in parts:
        if isinstance(piece, TextDelta):
            text += piece.text
        elif isinstance(piece, ToolCallStart):
            assert piece.index == len(calls)
            calls.append((piece.name, ""))
        else:
            assert piece.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    return text, calls


CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    (HERMES, "Hello.", "Hello.", []),
    (HERMES, "", "", []),
    (HERMES, f"<tool_call>\n{F}\n</tool_call>", "", [FX]),
    (HERMES, f"<tool_call>{F}</tool_call>\n<tool_call>{G}</tool_call>\n", "", [FX, GY]),
    (HERMES, f"I look.\n<tool_call>\n{F}\n</tool_call> Done.", "I look.\n Done.", [FX]),
    (HERMES, f"<tool_call>{F}", "", [FX]),
    (HERMES, f"<tool_call>{F}</tool", "", [FX]),
    (HERMES, f"<tool_call>{F} and more", " and more", [FX]),
    (HERMES, f"<tool_call>{F}</tool_calls> <b>", "</tool_calls> <b>", [FX]),
    (HERMES, "a < b <tool <tool_call <tool_cal", "a < b <tool <tool_call <tool_cal", []),
    (HERMES, "<<tool_call>" + F + "</tool_call>", "<", [FX]),
    (HERMES, "<tool_call>what?</tool_call>", "<tool_call>what?</tool_call>", []),
    (HERMES, '<tool_call>{"nome": "f"}</tool_call>', '<tool_call>{"nome": "f"}</tool_call>', []),
    (HERMES, '<tool_call>{"name": 5, "arguments": {}}', '<tool_call>{"name": 5, "arguments": {}}', []),
    (HERMES, '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [FX]),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [FX]),
    (HERMES, '<tool_call>{"id": 7, "ok": true, "name": "f", "arguments": {"x": 1}, "n": 1.5}', "", [FX]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": [', "", [("f", '{"x": [')]),
    (HERMES, '<tool_call>{"na', '<tool_call>{"na', []),
    (MISTRAL, f"[TOOL_CALLS][{F}, {G}]", "", [FX, GY]),
    (MISTRAL, f"[TOOL_CALLS] [{F}]\n", "", [FX]),
    (MISTRAL, f"So: [TOOL_CALLS][{F}] ok", "So:  ok", [FX]),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]' + GY[1], "", [FX, GY]),
    (MISTRAL, '[TOOL_CALLS] f {"x": 1}', "", [FX]),
    (MISTRAL, "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS][ARGS]{}", []),
    (MISTRAL, "[1, 2] [TOOL", "[1, 2] [TOOL", []),
    (MISTRAL, "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    (LLAMA3, '{"name": "f", "parameters": {"x": 1}}', "", [FX]),
    (LLAMA3, '<|python_tag|>{"name": "f", "parameters": {"x": 1}}; ' + G, "", [FX, GY]),
    (LLAMA3, ' {"name": "f", "parameters": {"x": 1}}', " ", [FX]),
    (LLAMA3, '{"colour": "red"} is JSON', '{"colour": "red"} is JSON', []),
    (LLAMA3, 'It is {"name": "f", "parameters": {}}', 'It is {"name": "f", "parameters": {}}', []),
    (LLAMA3, '<|python_tag|>print("hi")', '<|python_tag|>print("hi")', []),
]


@pytest.mark.parametrize(("tool_format", "source", "text", "calls"), CASES)
def test_an_answer_is_read_the_same_however_it_is_cut(
    tool_format: str, source: str, text: str, calls: list[tuple[str, str]]
) -> None:
    assert join_pieces(parse(tool_format, source)) == (text, calls)
    assert join_pieces(parse(tool_format, *source)) == (text, calls)
    for position in range(len(source)):
        assert join_pieces(parse(tool_format, source[:position], source[position:])) == (text, calls)


FRAGMENTS = [*START_MARKERS.values(), "</tool_call>", F, G, *'[]{}"\\,; \n', "f", "[ARGS]", "é"]


@given(st.sampled_from(list(START_MARKERS)), st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.data())
def test_any_text_is_read_the_same_however_it_is_cut(tool_format: str, parts: list[str], data: st.DataObject) -> None:
    source = "".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(source)), max_size=6)))
    parts = [source[a:b] for a, b in zip([0, *cuts], [*cuts, len(source)], strict=True)]
    expected = join_pieces(parse(tool_format, source))
    assert join_pieces(parse(tool_format, *parts)) == expected
    if not expected[1]:
        assert expected[0] == source, "without a call no text is lost"


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(max_size=8), VALUES, st.booleans())
def test_any_arguments_come_back(name: str, value: Any, is_reversed: bool) -> None:
    call = {"name": name or "f", "arguments": {"value": value}}
    order = dict(reversed(call.items())) if is_reversed else call
    for ascii_only in (True, False):
        source = f"<tool_call>{json.dumps(order, ensure_ascii=ascii_only)}</tool_call>"
        text, ((call_name, arguments),) = join_pieces(parse(HERMES, *source))
        assert (text, call_name, json.loads(arguments)) == ("", name or "f", {"value": value})


NUM_CHARS = 1_000_000 if FULL else 50_000
ENDLESS = [
    (HERMES, "", "x"), (HERMES, "", "<"), (HERMES, "<tool_call>", " "), (HERMES, "<tool_call>{", " "),
    (HERMES, '<tool_call>{"', "n"), (HERMES, '<tool_call>{"name": "', "n"), (HERMES, "<tool_call>", "{"),
    (HERMES, '<tool_call>{"arguments": "', "\\"), (HERMES, '<tool_call>{"arguments": {"a": [', "1,"),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": [', "1,"), (HERMES, f"<tool_call>{F}", " "),
    (HERMES, f"<tool_call>{F}</tool_call>", "\n"), (HERMES, "", f"<tool_call>{F}</tool_call>"),
    (MISTRAL, "[TOOL_CALLS]", "n"), (MISTRAL, "[TOOL_CALLS]", "["), (MISTRAL, "[TOOL_CALLS][", " "),
    (MISTRAL, f"[TOOL_CALLS][{F}", ","), (MISTRAL, "[TOOL_CALLS][", f"{F}, "), (MISTRAL, "", "[TOOL_CALLS]f{"),
    (LLAMA3, "", "{"), (LLAMA3, "", '{"a": '), (LLAMA3, F, ";"), (LLAMA3, "", f"{F}; "),
    (LLAMA3, "<|python_tag|>", " "),
]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("tool_format", "start", "repeated"), ENDLESS, ids=range(len(ENDLESS)))
def test_what_never_ends_is_read_to_its_end(tool_format: str, start: str, repeated: str) -> None:
    """The time is linear in the length; with quadratic time a million characters would take many minutes."""
    parser, count = ToolCallParser(tool_format), NUM_CHARS // len(repeated)
    parts = [piece for delta in (start, *(repeated for _ in range(count))) for piece in parser.push(delta)]
    text, calls = join_pieces(parts + parser.flush())
    assert len(text) + sum(len(arguments) for _, arguments in calls) <= len(start) + len(repeated) * count


def test_text_and_arguments_come_at_once() -> None:
    parser = ToolCallParser(HERMES)
    assert parser.push("Hello ") == [TextDelta("Hello ")]
    assert parser.push("you <too") == [TextDelta("you ")]
    assert parser.push('l_call>{"name": "f", "argum') == [ToolCallStart(0, "f")]
    assert parser.push('ents": {"x"') == [ToolCallArguments(0, '{"x"')]
    assert parser.push(": 1}") == [ToolCallArguments(0, ": 1}")]
    assert parser.push("}</tool_call>\n") == []
    assert parser.flush() == []


def test_a_template_tells_its_notation() -> None:
    assert detect_tool_format("... <tool_call> ...") == HERMES and detect_tool_format("[TOOL_CALLS]") == MISTRAL
    assert detect_tool_format("<|python_tag|>") == LLAMA3 and detect_tool_format("{{ messages }}") is None


def test_who_has_read_an_answer_leaves_nothing_for_the_garbage_collector() -> None:
    def parse() -> None:
        calls = ToolCallParser(HERMES)
        calls.push('so <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')

    parse()
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            parse()
        assert gc.collect() < 50
    finally:
        gc.enable()
