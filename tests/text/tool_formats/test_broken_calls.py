"""Broken calls, in every format: the text that the model wrote is content or a part of a call, also where it is cut."""

import pytest

from chairlift.text.tool_formats.base import ToolFormat
from support_tool_formats import ANSWERS_OF_FORMATS, FORMATS, Merged, halves, read

TAIL = "\nThen the weather was read and it was warm"
WORDS = "é 🚡"
CASES = [(each, answer) for each in FORMATS for answer, _ in ANSWERS_OF_FORMATS[each.name]]
EVERY_ANSWER = pytest.mark.parametrize(
    ("tool_format", "answer"), CASES, ids=[f"{case[0].name}-{index}" for index, case in enumerate(CASES)]
)


def damaged(answer: str) -> list[str]:
    """Return the answer without each one of its characters of syntax, and without its end."""
    places = [at for at, char in enumerate(answer) if not char.isalnum() and not char.isspace() and char not in WORDS]
    ends = {answer.rfind(end) for end in ("<", "}", "]", ")", "\n")} - {-1}
    return [*(answer[:at] + answer[at + 1 :] for at in places), *(answer[:end] for end in sorted(ends))]


def holds(result: Merged, text: str) -> bool:
    """Whether the text is in the content, in the reasoning, or in the arguments of a call."""
    every = [result.text, result.reasoning, *(arguments for _, arguments in result.calls)]
    return any(text in each for each in every)


@pytest.mark.share(12)
@EVERY_ANSWER
def test_no_text_is_lost_where_one_character_of_the_syntax_is_missing(tool_format: ToolFormat, answer: str) -> None:
    for broken in damaged(answer):
        whole = read(tool_format, broken + TAIL)
        assert holds(whole, TAIL.strip()), (broken, whole)
        assert holds(whole, WORDS) or WORDS not in broken, (broken, whole)
        assert read(tool_format, *(broken + TAIL)) == whole, broken


@pytest.mark.share(2)
@EVERY_ANSWER
def test_a_broken_call_is_read_the_same_however_it_is_split(tool_format: ToolFormat, answer: str) -> None:
    for broken in damaged(answer)[-3:]:
        whole = read(tool_format, broken + TAIL)
        assert all(read(tool_format, *parts) == whole for parts in halves(broken + TAIL)), broken


@pytest.mark.share(12)
@EVERY_ANSWER
def test_the_text_behind_a_broken_call_may_be_cut(tool_format: ToolFormat, answer: str) -> None:
    for broken in damaged(answer)[-3:]:
        for size in range(len("\nThen the"), len(TAIL) + 1):
            whole = read(tool_format, broken + TAIL[:size])
            assert holds(whole, TAIL[:size].strip()), (broken, whole)
