"""Reasoning: thought and answer come apart the same however the text is cut, and elsewhere marks are text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.text.reasoning_parser import CLOSE, OPEN, SPACE, Reasoning, Told, has_reasoning
from support_engine import FULL

SCRAPS = [OPEN, CLOSE, "<think", "</think", "<", "/", ">", " ", "\n", "\t\r\n", "a", "b c", "é", "\u00a0", "<Think>"]


def told(*deltas: str, inside: bool = False) -> tuple[str, str]:
    """Return thought and answer of an answer that comes in these pieces."""
    reader = Reasoning(inside=inside)
    news = [*(reader.push(delta) for delta in deltas), reader.flush()]
    return "".join(each.thought for each in news), "".join(each.said for each in news)


def by_the_rule(text: str, *, inside: bool) -> tuple[str, str]:
    """Return thought and answer of a whole text, as it is told in one breath."""
    if not inside:
        if not text.lstrip(SPACE).startswith(OPEN):
            return "", text
        text = text.lstrip(SPACE).removeprefix(OPEN)
    thought, _, said = text.partition(CLOSE)
    return thought.strip(SPACE), said.lstrip(SPACE)


WHOLE = [
    ("", "", ""),
    ("Hello.", "", "Hello."),
    (" \n Hello ", "", " \n Hello "),
    ("<think>why</think>because", "why", "because"),
    ("\n<think>\nwhy\n\nnot\n</think>\n\nbecause \n", "why\n\nnot", "because \n"),
    ("<think>\n\n</think>\n\nHello", "", "Hello"),
    ("<think></think>", "", ""),
    ("<think>cut off \n", "cut off", ""),
    ("<think>cut off </thi", "cut off </thi", ""),
    ("<think>a</think>b</think>c<think>d</think>", "a", "b</think>c<think>d</think>"),
    ("<think>a<think>b</think>c", "a<think>b", "c"),
    ("<think>1 < 2 </ b </think </think>c", "1 < 2 </ b </think", "c"),
    ("<think><</think>c", "<", "c"),
    ("Well <think>a</think>b", "", "Well <think>a</think>b"),
    ("a</think>b", "", "a</think>b"),
    ("<thin", "", "<thin"),
    (" <", "", " <"),
    ("<thinking>a</thinking>", "", "<thinking>a</thinking>"),
    ("<THINK>a</THINK>b", "", "<THINK>a</THINK>b"),
    ("< think>a</think>b", "", "< think>a</think>b"),
]


@pytest.mark.parametrize(("text", "thought", "said"), WHOLE)
def test_a_text_is_told_the_same_however_it_is_cut(text: str, thought: str, said: str) -> None:
    assert told(text) == told(*text) == (thought, said)
    for place in range(len(text)):
        assert told(text[:place], "", text[place:]) == (thought, said)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [("why</think>so", "why", "so"), ("\n why \n</think>\n so", "why", "so"), ("why", "why", ""),
     ("</think>so", "", "so"), ("<think>why</think>so", "<think>why", "so"), ("", "", ""), (" \n", "", "")],
)  # fmt: skip
def test_a_prompt_that_ends_with_the_opening_mark_begins_inside(text: str, thought: str, said: str) -> None:
    assert told(text, inside=True) == told(*text, inside=True) == (thought, said)


@given(st.lists(st.sampled_from(SCRAPS), max_size=12), st.booleans(), st.booleans(), st.data())
def test_any_cut_of_any_text_gives_what_the_rule_gives(
    scraps: list[str], opens: bool, inside: bool, data: st.DataObject
) -> None:
    text = (OPEN if opens else "") + "".join(scraps)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert told(*pieces, inside=inside) == told(*text, inside=inside) == by_the_rule(text, inside=inside)


@given(st.lists(st.sampled_from(SCRAPS), max_size=12), st.booleans())
def test_nothing_is_lost_but_the_marks_and_the_space_around_them(scraps: list[str], inside: bool) -> None:
    text = "".join(scraps)
    thought, said = told(text, inside=inside)
    assert (OPEN in text or inside) or said == text

    def letters(each: str) -> str:
        return "".join(each.split())

    rest = letters(text)
    assert letters(thought) in rest and rest.endswith(letters(said))
    assert len(rest) - len(letters(thought + said)) <= len(OPEN + CLOSE)


def test_what_is_certain_comes_at_once() -> None:
    reader = Reasoning(inside=False)
    assert reader.push("\n<thi") == Told()
    assert reader.push("nk>\n") == Told()
    assert reader.push("1 <") == Told(thought="1")
    assert reader.push(" 2 </think") == Told(thought=" < 2")
    assert reader.push("ing") == Told(thought=" </thinking")
    assert reader.push(" </think>\n") == Told()
    assert reader.push("\nSo") == Told(said="So")
    assert reader.push(" <") == Told(said=" <")
    assert reader.flush() == Told()


def test_an_answer_that_does_not_think_is_not_held_back() -> None:
    reader = Reasoning(inside=False)
    assert [reader.push(delta) for delta in ("H", " ", "<", "think>")] == [
        Told(said="H"), Told(said=" "), Told(said="<"), Told(said="think>")
    ]  # fmt: skip


def test_a_template_tells_whether_its_model_thinks() -> None:
    assert has_reasoning("{{ content.split('</think>')[-1] }}") and not has_reasoning("{{ messages }} <think>")


def test_white_space_without_end_is_said_and_not_held_for_ever() -> None:
    reasoning = Reasoning(inside=True)
    said = [reasoning.push(" a" + " " * 100).thought, *(reasoning.push(" " * 100).thought for _ in range(20))]
    assert said[0] == "a" and sum(map(len, said)) > 1500


def test_white_space_before_an_answer_is_not_held_for_ever() -> None:
    reasoning = Reasoning(inside=False)
    said = [reasoning.push(" " * 100).said for _ in range(20)]
    assert sum(map(len, said)) == 2000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("begin", "again"), [
    ("", " "), ("", "<"), ("<think>", " "), ("<think>", "x"), ("<think>", " x"), ("<think>", "<"),
    ("<think>", "</think"), ("<think></think>", " "), ("<think></think>", "x"),
])  # fmt: skip
def test_what_never_ends_is_read_to_its_end(begin: str, again: str) -> None:
    """In time that grows with its length alone."""
    reader, count = Reasoning(inside=False), (1_000_000 if FULL else 50_000) // len(again)
    told = [reader.push(delta) for delta in (begin, *(again for _ in range(count)))]
    told.append(reader.flush())
    size = sum(len(each.said) + len(each.thought) for each in told)
    assert size <= len(begin) + len(again) * count
    if again.strip():
        assert size >= len(again) * count - len(again)
