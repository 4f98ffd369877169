"""Readers: tokens, ends and markers, read where the text ends anywhere."""

from chairlift.text.tool_formats.answer_scan_and_marker_readers import (
    read_past_space,
    read_text,
    read_token,
    read_until,
)
from chairlift.text.tool_formats.scanner import NotACall, Scan, Scanner, ScanningParser
from support_shares import for_each


def test_a_token_is_read_or_everything_is_put_back() -> None:
    results: list[str] = []

    def tokens(scanner: Scanner) -> Scan[None]:
        while True:
            results.append((yield from read_token(scanner, ("abc", "x"))))
            results.append((yield from read_past_space(scanner)))

    parser = ScanningParser(tokens)
    for char in " \n abc d abd x!":
        parser.push(char)
    assert results == ["abc", "d", "", "a", "", "b", "", "d", "x", "!"]


@for_each(
    ("answer", "limit", "expected"),
    [("a]b", 9, [("a", "]"), "b"]), ("a]>b", 9, [("a", "]"), ">"]), ("a->b", 9, [("a", "->"), "b"]),
     ("--->b", 9, [("--", "->"), "b"]), ("abcd", 3, ["too long", "d"]), ("->", 9, [("", "->")])],
)  # fmt: skip
def test_text_is_read_up_to_an_end(answer: str, limit: int, expected: list[object]) -> None:
    results: list[object] = []

    def program(scanner: Scanner) -> Scan[None]:
        try:
            results.append((yield from read_until(scanner, ("->", "]"), limit)))
        except NotACall:
            results.append("too long")
        results.append((yield from scanner.read()))
        while True:
            yield from scanner.read()

    ScanningParser(program).push(answer)
    assert results == expected


@for_each(
    ("answer", "markers"),
    [("a<b>", ["<b>"]), ("<<b>", ["<b>"]), ("<b<b>[", ["<b>"]), ("[a", ["["]), (" [", ["["]), ("a[<b>", ["<b>"]),
     ("<<<", []), ("]", [])],
)  # fmt: skip
def test_a_marker_is_found_in_text_and_a_bare_one_only_at_its_beginning(answer: str, markers: list[str]) -> None:
    found: list[str] = []

    def program(scanner: Scanner) -> Scan[None]:
        found.append((yield from read_text(scanner, ("<b>",), ("[",))))
        while True:
            yield from scanner.read()

    ScanningParser(program).push(answer)
    assert found == markers
