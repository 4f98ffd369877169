"""JSON in calls: values end where JSON says, and strings have their value."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from chairlift.text.tool_formats.json_values import is_json, json_string, read_json_value, string_value
from chairlift.text.tool_formats.scanner import Scan, Scanner, ScanningParser
from support_shares import for_each

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_a_value_ends_where_json_says(value: Any, ascii_only: bool, indent: int | None) -> None:
    source = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    raw: list[str] = []
    rest: list[str] = []

    def program(scanner: Scanner) -> Scan[None]:
        first = yield from scanner.read()
        yield from read_json_value(scanner, first, raw.append)
        while True:
            rest.append((yield from scanner.read()))

    ScanningParser(program).push(source + ",]")
    assert ("".join(raw), "".join(rest)) == (source, ",]")


@for_each(
    ("text", "value"),
    [('"a\\n"', "a\n"), ('"\\ud83d\\ude00"', "😀"), ('"\\ud800x"', "\ufffdx"), ("5", None), ("[]", None), ('"a', None),
     ("", None), ("[" * 100_000, None)],
)  # fmt: skip
def test_the_value_of_a_string(text: str, value: str | None) -> None:
    assert string_value(text) == value


@given(st.text(st.characters(codec=None), max_size=20))
def test_any_text_becomes_a_json_string_that_utf_8_can_encode(text: str) -> None:
    assert json.loads(json_string(text).encode()) == json.loads(json.dumps(text))


@for_each(
    ("text", "valid"),
    [("1", True), ("9" * 5000, True), ("NaN", False), ("-Infinity", False), ("[1,]", False), ("[" * 100_000, False),
     ("", False), ('{"a": [null]}', True), ("1 2", False)],
)  # fmt: skip
def test_what_is_json(text: str, valid: bool) -> None:
    assert is_json(text) is valid
