"""The contract of ToolCallParser, for every format: split, cut, malformed and endless answers."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.text.tool_formats.base import ToolFormat
from support_shares import FULL
from support_tool_formats import ANSWERS_OF_FORMATS, FORMATS, SCHEMAS, SYNTAX, Merged, check_every_split, push_all, read

HIDES = ("harmony", "command-r", "command-a")
"""Formats that leave out markers without calls."""

CASES = [(tool_format, *case) for tool_format in FORMATS for case in ANSWERS_OF_FORMATS[tool_format.name]]
IDS = [f"{case[0].name}-{index}" for index, case in enumerate(CASES)]
CALLS = pytest.mark.parametrize(("tool_format", "answer", "calls"), CASES, ids=IDS)
EVERY_FORMAT = pytest.mark.parametrize("tool_format", FORMATS, ids=[each.name for each in FORMATS])


@pytest.mark.share(14)
@CALLS
def test_calls_are_read_the_same_however_the_answer_is_split(
    tool_format: ToolFormat, answer: str, calls: tuple[tuple[str, str], ...]
) -> None:
    check_every_split(tool_format, answer, Merged("", calls))
    for name, arguments in calls:
        assert name in SCHEMAS and isinstance(json.loads(arguments), dict)


@pytest.mark.share(17)
@CALLS
def test_an_answer_may_be_cut_anywhere(
    tool_format: ToolFormat, answer: str, calls: tuple[tuple[str, str], ...]
) -> None:
    """A started call keeps its arguments so far, the calls before it are complete, and no text comes between."""
    for end in range(len(answer)):
        result = read(tool_format, answer[:end])
        assert len(result.calls) <= len(calls)
        for index, ((name, arguments), (full_name, full)) in enumerate(zip(result.calls, calls, strict=False)):
            assert name == full_name and full.startswith(arguments)
            assert arguments == full or index == len(result.calls) - 1
        if not result.calls:
            assert result.text in answer[:end]


@CALLS
def test_the_text_after_calls_is_text(tool_format: ToolFormat, answer: str, calls: tuple[tuple[str, str], ...]) -> None:
    result = read(tool_format, answer + "\nDone.")
    assert result.calls == calls and (tool_format.is_generic or result.text.strip() == "Done.")


def any_answer(tool_format: ToolFormat, data: st.DataObject) -> str:
    """Draw parts of the format's syntax, or an answer with calls that is damaged in a few places."""
    parts = st.sampled_from([*SYNTAX[tool_format.name], *"[]{}()\"'\\,;=:<> \n", "f", "g(", "é", "1", "```"])
    if data.draw(st.booleans()):
        return "".join(data.draw(st.lists(parts, max_size=12)))
    answer = data.draw(st.sampled_from(ANSWERS_OF_FORMATS[tool_format.name]))[0]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(answer)))
        answer = answer[:start] + data.draw(parts | st.just("")) + answer[start + data.draw(st.integers(0, 3)) :]
    return answer


@pytest.mark.share(1)
@EVERY_FORMAT
@given(data=st.data())
@settings(max_examples=60)
def test_any_text_is_read_the_same_however_it_is_split(tool_format: ToolFormat, data: st.DataObject) -> None:
    answer = any_answer(tool_format, data)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(answer)), max_size=6)))
    deltas = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    whole = read(tool_format, answer)
    assert read(tool_format, *deltas) == read(tool_format, *answer) == whole
    if tool_format.is_generic:
        return
    characters = iter(answer)
    assert all(char in characters for char in whole.text), "no character appears twice, or at another place"
    if not whole.calls and not whole.reasoning and tool_format.name not in HIDES:
        assert whole.text == answer, "where there is no call, nothing is lost"


@pytest.mark.share(40)
@EVERY_FORMAT
@pytest.mark.parametrize(
    "text", ["", "Hello.", " \n", "a < b, [1] {2} `3`", "<tool", "🚡 é\x00", "```python\nx = [1]\n```", '"quoted"', "1"]
)
def test_text_without_calls_stays(tool_format: ToolFormat, text: str) -> None:
    check_every_split(tool_format, text, Merged(text))


MANY = 200_000 if FULL else 4_000
FILLERS = ("x", " ", "\n", "{", "[", '"', "<", "`", "(", "\\", ",")


@pytest.mark.share(3)
@pytest.mark.timeout(600 if FULL else 60)
@EVERY_FORMAT
def test_each_character_takes_constant_time(tool_format: ToolFormat) -> None:
    """With the square of its length a million characters would take many minutes."""
    answer = ANSWERS_OF_FORMATS[tool_format.name][0][0]
    for number, place in enumerate(range(0, len(answer), 11)):
        filler = FILLERS[number % len(FILLERS)]
        push_all(tool_format.make_parser(SCHEMAS), answer[:place], *([filler] * MANY))
    push_all(tool_format.make_parser(SCHEMAS), *([answer] * (MANY // len(answer))))
