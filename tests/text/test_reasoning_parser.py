"""ReasoningParser: the split of reasoning and content does not depend on the deltas; other tags are text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.text.reasoning_formats import REASONING_FORMATS, THINK_TAGS
from chairlift.text.reasoning_parser import SPACE, ReasoningDelta, ReasoningParser
from support_shares import FULL, for_each

OPEN, CLOSE = "<think>", "</think>"
FRAGMENTS = [OPEN, CLOSE, "<think", "</think", "<", "/", ">", " ", "\n", "\t\r\n", "a", "b c", "é", "\u00a0", "<Think>"]


def parse(*deltas: str, inside: bool = False, name: str = "qwen3") -> tuple[str, str]:
    """Return the reasoning and the content of a text in these deltas."""
    parser = ReasoningParser(REASONING_FORMATS[name], is_open=inside)
    parts = [*(parser.push(delta) for delta in deltas), parser.flush()]
    return "".join(each.reasoning for each in parts), "".join(each.content for each in parts)


def split_by_definition(text: str, *, inside: bool) -> tuple[str, str]:
    """Return the expected reasoning and content of a whole text."""
    if not inside:
        if not text.lstrip(SPACE).startswith(OPEN):
            return "", text
        text = text.lstrip(SPACE).removeprefix(OPEN)
    reasoning_text, _, content = text.partition(CLOSE)
    return reasoning_text.strip(SPACE), content.lstrip(SPACE)


CASES = [
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


@for_each(("text", "reasoning_text", "content"), CASES)
def test_the_split_does_not_depend_on_the_deltas(text: str, reasoning_text: str, content: str) -> None:
    assert parse(text) == parse(*text) == (reasoning_text, content)
    for position in range(len(text)):
        assert parse(text[:position], "", text[position:]) == (reasoning_text, content)


@for_each(
    ("text", "reasoning_text", "content"),
    [("why</think>so", "why", "so"), ("\n why \n</think>\n so", "why", "so"), ("why", "why", ""),
     ("</think>so", "", "so"), ("<think>why</think>so", "<think>why", "so"), ("", "", ""), (" \n", "", "")],
)  # fmt: skip
def test_a_prompt_that_ends_with_the_opening_mark_begins_inside(text: str, reasoning_text: str, content: str) -> None:
    assert parse(text, inside=True) == parse(*text, inside=True) == (reasoning_text, content)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.booleans(), st.booleans(), st.data())
def test_any_cut_of_any_text_gives_what_the_rule_gives(
    fragments: list[str], opens: bool, inside: bool, data: st.DataObject
) -> None:
    text = (OPEN if opens else "") + "".join(fragments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(*parts, inside=inside) == parse(*text, inside=inside) == split_by_definition(text, inside=inside)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.booleans())
def test_nothing_is_lost_but_the_marks_and_the_space_around_them(fragments: list[str], inside: bool) -> None:
    text = "".join(fragments)
    reasoning_text, content = parse(text, inside=inside)
    assert (OPEN in text or inside) or content == text

    def without_space(each: str) -> str:
        return "".join(each.split())

    rest = without_space(text)
    assert without_space(reasoning_text) in rest and rest.endswith(without_space(content))
    assert len(rest) - len(without_space(reasoning_text + content)) <= len(OPEN + CLOSE)


def test_what_is_certain_comes_at_once() -> None:
    parser = ReasoningParser(THINK_TAGS)
    assert parser.push("\n<thi") == ReasoningDelta()
    assert parser.push("nk>\n") == ReasoningDelta()
    assert parser.push("1 <") == ReasoningDelta(reasoning="1")
    assert parser.push(" 2 </think") == ReasoningDelta(reasoning=" < 2")
    assert parser.push("ing") == ReasoningDelta(reasoning=" </thinking")
    assert parser.push(" </think>\n") == ReasoningDelta()
    assert parser.push("\nSo") == ReasoningDelta(content="So")
    assert parser.push(" <") == ReasoningDelta(content=" <")
    assert parser.flush() == ReasoningDelta()


def test_an_answer_that_does_not_think_is_not_held_back() -> None:
    parser = ReasoningParser(THINK_TAGS)
    assert [parser.push(delta) for delta in ("H", " ", "<", "think>")] == [
        ReasoningDelta(content="H"), ReasoningDelta(content=" "), ReasoningDelta(content="<"),
        ReasoningDelta(content="think>")
    ]  # fmt: skip


MORE_CASES = [
    ("deepseek_r1", "why</think>so", "why", "so"),
    ("deepseek_r1", "\n<think>why</think>so", "why", "so"),
    ("deepseek_r1", " cut off", "cut off", ""),
    ("granite", "Here is my thought process: why Here is my response: so", "why", "so"),
    ("granite", "Here's my thought process:why\n\nHere's my response:so", "why", "so"),
    ("granite", "Here is my thought process: a Here is my thought", "a Here is my thought", ""),
    ("granite", "Here is my answer", "", "Here is my answer"),
    ("mistral", "[THINK]why[/THINK]so", "why", "so"),
    ("seed_oss", "<seed:think>why</seed:think>so", "why", "so"),
    ("command_a", "<|START_THINKING|>why<|END_THINKING|>so", "why", "so"),
]


@for_each(("name", "text", "reasoning_text", "content"), MORE_CASES)
def test_each_format_has_its_own_markers(name: str, text: str, reasoning_text: str, content: str) -> None:
    assert parse(text, name=name) == parse(*text, name=name) == (reasoning_text, content)
    for position in range(len(text)):
        assert parse(text[:position], text[position:], name=name) == (reasoning_text, content)


def test_white_space_without_end_is_said_and_not_held_for_ever() -> None:
    reasoning = ReasoningParser(THINK_TAGS, is_open=True)
    content = [reasoning.push(" a" + " " * 100).reasoning, *(reasoning.push(" " * 100).reasoning for _ in range(20))]
    assert content[0] == "a" and sum(map(len, content)) > 1500


def test_white_space_before_an_answer_is_not_held_for_ever() -> None:
    reasoning = ReasoningParser(THINK_TAGS)
    content = [reasoning.push(" " * 100).content for _ in range(20)]
    assert sum(map(len, content)) == 2000


@pytest.mark.share(2)
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("start", "repeated"), [
    ("", " "), ("", "<"), ("<think>", " "), ("<think>", "x"), ("<think>", " x"), ("<think>", "<"),
    ("<think>", "</think"), ("<think></think>", " "), ("<think></think>", "x"),
])  # fmt: skip
def test_what_never_ends_is_read_to_its_end(start: str, repeated: str) -> None:
    """The time is linear in the length."""
    parser, count = ReasoningParser(THINK_TAGS), (1_000_000 if FULL else 50_000) // len(repeated)
    deltas = [parser.push(delta) for delta in (start, *(repeated for _ in range(count)))]
    deltas.append(parser.flush())
    size = sum(len(each.content) + len(each.reasoning) for each in deltas)
    assert size <= len(start) + len(repeated) * count
    if repeated.strip():
        assert size >= len(repeated) * count - len(repeated)


GRANITE_CASES = [
    ("<think>why</think><response>because</response>", "why", "because"),
    ("<think>why</think>\n<response>\nbecause\n</response>\n", "why", "because\n"),
    ("<think>why</think>because</response>", "why", "because</response>"),
    ("<think>why</think><resp", "why", "<resp"),
    ("<think>why</think><response", "why", "<response"),
    ("<think>why</think><response>cut </resp", "why", "cut </resp"),
    ("<think>why</think><response>a</response> b</response>", "why", "a b</response>"),
    ("<think>why</think><response> </response>\nb", "why", "b"),
    ("<response>a</response>", "", "<response>a</response>"),
    ("because <response>", "", "because <response>"),
]


@for_each(("text", "reasoning_text", "content"), GRANITE_CASES)
def test_tags_around_the_answer_behind_the_reasoning_are_left_out(text: str, reasoning_text: str, content: str) -> None:
    assert parse(text, name="granite33") == parse(*text, name="granite33") == (reasoning_text, content)
    for position in range(len(text)):
        assert parse(text[:position], "", text[position:], name="granite33") == (reasoning_text, content)


def test_the_answer_within_tags_streams() -> None:
    parser = ReasoningParser(REASONING_FORMATS["granite33"])
    assert parser.push("<think>a</think><response>So it") == ReasoningDelta("a", "So it")
    assert parser.push(" is </r") == ReasoningDelta(content=" is")
    assert parser.push("un") == ReasoningDelta(content=" </run")
