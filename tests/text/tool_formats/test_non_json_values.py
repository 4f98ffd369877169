"""Literals: Python's and Gemma's values become JSON of the same value, whatever they hold."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from chairlift.text.tool_formats.non_json_values import gemma_json, python_json
from support_shares import for_each

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_a_python_literal_becomes_the_same_value(value: Any) -> None:
    assert json.loads(python_json(repr(value))) == value


@for_each(
    ("text", "value"),
    [
        ("1_000", 1000), ("0x1F", 31), ("+5", 5), (".5", 0.5), ("1.", 1.0), ("-1e-5", -1e-5), ("1E3", 1000.0),
        ("(1, 2,)", [1, 2]), ("{1: 'a', True: 2}", {"1": "a", "true": 2}), ('"""a"b\n"""', 'a"b\n'), ("''", ""),
        ("r'a\\n'", "a\\n"), ("'\\x41\\u00e9\\101\\N{DASH}\\\nb\\q'", "AéA\\N{DASH}b\\q"), ("u'a'", "a"),
        ("'a' 'b'", "'a' 'b'"), ("1+2", "1+2"), ("2024-01-02", "2024-01-02"), ("name", "name"), ("{1, 2}", "{1, 2}"),
        ("float('inf')", "float('inf')"), ("inf", "inf"), ("nan", "nan"), ("__import__('os')", "__import__('os')"),
        ("[1, 2", "[1, 2"), ("'abc", "'abc"), ("", ""), ("[" * 100_000, "[" * 100_000), ("a b", "a b"),
        ("0x" + "f" * 20_000, "0x" + "f" * 20_000), ("'\\ud800'", "\ud800"), ("'\\U00110000'", "\\U00110000"),
    ],
)  # fmt: skip
def test_a_literal_becomes_json_and_other_text_a_string(text: str, value: Any) -> None:
    assert json.loads(python_json(text)) == value


@for_each(
    ("text", "value"),
    [
        ("<escape>x<escape>", "x"), ("1", 1), ("true", True), ("null", None), ("New York", "New York"),
        ("{a:<escape>x, }\"<escape>,b:[1, -2.5]}", {"a": 'x, }"', "b": [1, -2.5]}), ("{}", {}), ("[ ]", []),
        ("{k k:v}", {"k k": "v"}), ('"a\\n"', "a\n"), ("<escape>a", "<escape>a"), ("{a:", "{a:"), ("", ""),
        ("[<escape><escape>]", [""]), ("{<escape>a b<escape>:1}", {"a b": 1}),
    ],
)  # fmt: skip
def test_a_value_of_gemma_becomes_json(text: str, value: Any) -> None:
    assert json.loads(gemma_json(text, "<escape>")) == value
    assert json.loads(gemma_json(text.replace("<escape>", '<|"|>'), '<|"|>')) == (
        value.replace("<escape>", '<|"|>') if isinstance(value, str) else value
    )
