"""PYTHONIC: Python calls become calls with JSON arguments, without evaluation."""

from chairlift.text.tool_formats.pythonic import PYTHONIC
from chairlift.text.tool_formats.tool_call_parser import ToolCallArguments, ToolCallStart
from support_shares import for_each
from support_tool_formats import SCHEMAS, Merged, check_every_split, read

FX, G = ("f", '{"x": 1}'), ("g", "{}")
S = """[f(s="a)], 'b' \\"q\\" é", x=1), g(y='it\\'s', z=[1, {"k": (None, True)}])]"""

ANSWERS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("Hello [f(x=1)]", "Hello [f(x=1)]", []),
    ("[f(x=1)]", "", [FX]),
    ("[f(x=1), g()]", "", [FX, G]),
    ("[f( x = 1 ,),\n g( )]\n", "", [FX, G]),
    (S, "", [("f", '{"s": "a)], \'b\' \\"q\\" é", "x": 1}'), ("g", '{"y": "it\'s", "z": [1, {"k": [null, true]}]}')]),
    ("<|python_start|>[f(x=1)]<|python_end|>", "", [FX]),
    ("I look. <|python_start|>[f(x=1)]<|python_end|> Done.", "I look.  Done.", [FX]),
    ("<|python_start|>f(x=1)<|python_end|>", "", [FX]),
    ('<|python_start|>{"name": "f", "parameters": {"x": 1}}<|python_end|>', "", [FX]),
    (
        "<|thought_start|>So.<|thought_end|>\n<|tool_call_start|>\n```python\nprint(f(x=1))\n```\n<|tool_call_end|>",
        "",
        [FX],
    ),
    ("[f(1, 'a')]", "", [("f", '{"x": 1, "s": "a"}')]),
    ("[f(1, 'a', None)]", "", [("f", '{"x": 1, "s": "a", "argument_2": null}')]),
    ("[f(x=one + 2, s=g(1, 2))]", "", [("f", '{"x": "one + 2", "s": "g(1, 2)"}')]),
    ("[f(s=a==b)]", "", [("f", '{"s": "a==b"}')]),
    ("[f(1==2)]", "", [("f", '{"x": "1==2"}')]),
    ("[1, 2, 3]", "[1, 2, 3]", []),
    ("[print(1)]", "[print(1)]", []),
    ("[f(x=1), 5]", ", 5]", [FX]),
    ("[f(x=1), h(", ", h(", [FX]),
    ("[f(x=1), ", "", [FX]),
    ("[f(x=1", "", [("f", '{"x": 1')]),
    ("[f(x=1, s=", "", [("f", '{"x": 1')]),
    ("[]", "[]", []),
    ("[f(x=1)] and [g()]", " and [g()]", [FX]),
]


@for_each(("answer", "text", "calls"), ANSWERS)
def test_an_answer_is_read_the_same_however_it_is_split(answer: str, text: str, calls: list[tuple[str, str]]) -> None:
    reasoning = "So." if "<|thought_start|>" in answer else ""
    check_every_split(PYTHONIC, answer, Merged(text, tuple(calls), reasoning))


def test_each_argument_comes_when_it_is_complete() -> None:
    parser = PYTHONIC.make_parser(SCHEMAS)
    assert parser.push("[f(") == [ToolCallStart(0, "f")]
    assert parser.push("x=12") == []
    assert parser.push(", s=") == [ToolCallArguments(0, '{"x": 12')]
    assert parser.push("'a')") == [ToolCallArguments(0, ', "s": "a"}')]


def test_without_tools_any_function_may_be_called() -> None:
    assert read(PYTHONIC, "[any.thing(x=1)]", schemas={}) == Merged("", (("any.thing", '{"x": 1}'),))


def test_a_quote_within_a_word_is_a_part_of_a_string() -> None:
    """LFM2.5's template writes strings without escapes, and so do models that learned from it."""
    answer = "<|tool_call_start|>[f(s='it's \"so\"', x=1), g(z=['a'b', 'c'])]<|tool_call_end|>"
    calls = (("f", '{"s": "it\'s \\"so\\"", "x": 1}'), ("g", '{"z": ["a\'b", "c"]}'))
    check_every_split(PYTHONIC, answer, Merged("", calls))
    check_every_split(PYTHONIC, '[f(s="a\\/b"), g(z=[""])]', Merged("", (("f", '{"s": "a/b"}'), ("g", '{"z": [""]}'))))
