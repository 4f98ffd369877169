"""Scanner, ScanningParser: text is held only while it may be syntax, and nothing is lost."""

import gc

from chairlift.text.tool_formats.answer_scan_and_marker_readers import read_closing, read_until, scan_answer
from chairlift.text.tool_formats.scanner import NotACall, Scan, Scanner, ScanningParser
from chairlift.text.tool_formats.tool_call_parser import ReasoningText, TextDelta, ToolCallArguments, ToolCallStart
from support_shares import for_each
from support_tool_formats import Merged, halves, merged, push_all


def section(scanner: Scanner, marker: str) -> Scan[None]:
    """Read a call: a name, and arguments in parentheses."""
    name, _ = yield from read_until(scanner, ("(",), 20)
    if not name.isalpha():
        raise NotACall
    scanner.start_call(name)
    arguments, _ = yield from read_until(scanner, ("))", ")"), 100)
    scanner.add_arguments(arguments)
    scanner.end_call()
    yield from read_closing(scanner, ("</call>", ";"))


def program(scanner: Scanner) -> Scan[None]:
    yield from scan_answer(
        scanner, ("<call>", "<<run>"), section, bare=("go ",), hidden=("<hidden>",), reasoning={"<think>": "</think>"}
    )


@for_each(
    ("answer", "expected"),
    [
        ("text", Merged("text")),
        ("<call>f(1)", Merged("", (("f", "1"),))), ("<<call>f(1)", Merged("<", (("f", "1"),))),
        ("<<run>f(1)", Merged("", (("f", "1"),))), ("<<<run>f(1)", Merged("<", (("f", "1"),))),
        ("<call>f(1)</call>;\n <call>g(2)", Merged("", (("f", "1"), ("g", "2")))),
        ("<call>f(1)</call> a \n", Merged(" a \n", (("f", "1"),))), ("<call>f(1) </ca", Merged("", (("f", "1"),))),
        ("<call>f(1)\n<", Merged("", (("f", "1"),))), ("<call>f(1) , ", Merged(" , ", (("f", "1"),))),
        ("<call>5(1)<call>f(1)", Merged("<call>5(1)", (("f", "1"),))), ("<call>", Merged("<call>")),
        ("<call><call>f(1)", Merged("<call><call>f(1)")), ("go f(1)", Merged("", (("f", "1"),))),
        (" go f(1)", Merged(" ", (("f", "1"),))), ("a go f(1)", Merged("a go f(1)")), ("go gone", Merged("go gone")),
        ("a<hidden>b<hid", Merged("ab<hid")), ("<call>f(1)<hidden>", Merged("", (("f", "1"),))),
        ("<think>so <call>\n</think>\n\nyes", Merged("yes", (), "so <call>")),
        ("<think>so</think>\n <call>f(1)", Merged("", (("f", "1"),), "so")),
        ("<think>a</thi", Merged("", (), "a</thi")),
        ("<think>a</think> \n", Merged("", (), "a")), ("<call>f(" + "x" * 200, Merged("x" * 200, (("f", ""),))),
    ],
)  # fmt: skip
def test_an_answer_is_read_the_same_however_it_is_split(answer: str, expected: Merged) -> None:
    for parts in ([answer], list(answer), *halves(answer)):
        assert merged(push_all(ScanningParser(program), *parts)) == expected, parts


def test_adjacent_pieces_are_one() -> None:
    parser = ScanningParser(program)
    assert parser.push("ab<think>cd</think>e<call>f(12)<call>g(3)") == [
        TextDelta("ab"), ReasoningText("cd"), TextDelta("e"), ToolCallStart(0, "f"), ToolCallArguments(0, "12"),
        ToolCallStart(1, "g"), ToolCallArguments(1, "3"),
    ]  # fmt: skip
    assert parser.push("") == parser.flush() == []


def test_a_parser_leaves_nothing_for_the_garbage_collector() -> None:
    def read() -> None:
        parser = ScanningParser(program)
        parser.push("so <call>f(1)</call> and <call>5(")

    read()
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            read()
        assert gc.collect() < 50
    finally:
        gc.enable()
