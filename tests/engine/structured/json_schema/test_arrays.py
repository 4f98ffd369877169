"""Arrays: contains, uniqueItems and items are rewritten to alternatives, within limits."""

from typing import Any

import pytest

from chairlift.engine.structured.json_schema.lowering import lower
from support_grammars import grammar_of
from support_json_schema import accepts, check, check_outputs, rejection
from support_shares import for_each

COLORS = {"enum": ["red", "green", "blue"]}
MANY = [f"tag{number}" for number in range(7)]
A, B = {"const": "a"}, "b"


@for_each(
    ("schema", "matching", "failing", "lost"),
    [
        ({"type": "array", "contains": A}, [["a"], ["b", "a", 1], ["a", "a"]], [[], ["b"]], [["b"] * 8 + ["a"]]),
        ({"contains": A}, [[1, "a"]], [[], ["b"]], [1, "x", {"a": []}]),
        ({"type": "array", "contains": A, "minContains": 2}, [["a", "a"], ["a", 1, "a"]], [["a"], ["a", 1]], []),
        ({"type": "array", "contains": A, "maxContains": 1}, [["a"], ["b", "a", "b"]], [[], ["a", "a"], ["b"]], []),
        ({"type": "array", "contains": A, "minContains": 0}, [[], ["b"], ["a"]], [1], []),
        ({"type": "array", "contains": A, "minContains": 0, "maxContains": 1}, [[], [1, "a"]], [["a", "a"]], []),
        ({"type": "array", "contains": A, "maxItems": 2}, [["a"], ["b", "a"]], [["b", "b", "a"], ["b"]], []),
        ({"type": "array", "items": {"type": "string"}, "contains": A}, [["a"], ["b", "a"]], [[1, "a"], ["b"]], []),
        ({"type": ["array", "null"], "contains": False}, [None], [[], [1]], []),
        ({"contains": True}, [[1]], [[]], [1]),
        ({"not": {"type": "array", "contains": A}}, [[], ["b"], 1], [["a"], ["b", "a"]], []),
        ({"type": "array", "contains": A, "minContains": 3, "maxContains": 2}, [], [], []),
    ],
)  # fmt: skip
def test_contains(schema: Any, matching: list[Any], failing: list[Any], lost: list[Any]) -> None:
    if matching:
        check(schema, matching, failing, lost)
    else:
        assert "no output" in rejection(schema)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("schema", "matching", "failing", "lost"),
    [
        ({"type": "array", "items": COLORS, "uniqueItems": True}, [[], ["red"], ["blue", "green", "red"]],
         [["red", "red"], ["red", "green", "red"], ["pink"]], []),
        ({"items": {"type": ["boolean", "null"]}, "uniqueItems": True}, [[True, None]], [[None, None]], [1, {}]),
        ({"type": "array", "items": COLORS, "uniqueItems": True, "minItems": 2, "maxItems": 2}, [["blue", "red"]],
         [["red"], ["red", "red"], ["red", "green", "blue"]], []),
        ({"type": "array", "items": {"enum": MANY}, "uniqueItems": True}, [[], MANY, ["tag2", "tag5"]],
         [["tag1", "tag1"]], [["tag5", "tag2"]]),
        ({"type": "array", "prefixItems": [{"type": "boolean"}] * 2, "items": False, "uniqueItems": True},
         [[], [True], [False, True]], [[True, True], [False, False]], []),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, [[], [3]], [[1, 2]], []),
        ({"type": "array", "uniqueItems": False}, [[1, 1]], [1], []),
        ({"type": "array", "items": {"enum": [1, 1.0, True]}, "uniqueItems": True}, [[1, True]], [[1, 1]], []),
        ({"items": {"$ref": "#/$defs/color"}, "uniqueItems": True, "$defs": {"color": COLORS}}, [["red"]],
         [["red", "red"]], []),
    ],
)  # fmt: skip
def test_unique_items(schema: Any, matching: list[Any], failing: list[Any], lost: list[Any]) -> None:
    check(schema, matching, failing, lost)


def test_unique_items_need_a_finite_set() -> None:
    assert rejection({"properties": {"tags": {"type": "array", "uniqueItems": True}}}) == (
        "/properties/tags/uniqueItems needs items from a finite set, such as an enum"
    )
    words = {"enum": [str(number) for number in range(40)]}
    assert "more than 350 arrays" in rejection({"items": words, "uniqueItems": True})
    check_outputs({"items": {"enum": MANY}, "uniqueItems": True, "type": "array", "maxItems": 2})


@for_each(
    ("schema", "matching", "failing"),
    [
        ({"not": {"items": {"type": "integer"}}}, [["a"], [1, "a"]], [[], [1], 1]),
        ({"not": {"prefixItems": [A, {"const": B}]}}, [["b"], ["a", "a"]], [["a", "b"], ["a"], []]),
        ({"not": {"prefixItems": [A], "items": False}}, [["b"], ["a", 1]], [["a"], []]),
        ({"not": {"const": ["a", 1]}}, [[], ["a"], ["a", 2], ["a", 1, 1], "a"], [["a", 1]]),
        ({"type": "array", "not": {"maxItems": 1}}, [[1, 2]], [[], [1]]),
        ({"type": "array", "maxItems": 2.0, "items": True}, [[1]], [[1, 2, 3]]),
    ],
)  # fmt: skip
def test_items(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    check(schema, matching, failing)


def test_items_of_json_schema_7() -> None:
    """Draft202012Validator takes no list in `items`, so only the grammar is checked."""
    grammar = grammar_of(json_schema={"items": [{"type": "integer"}], "additionalItems": {"type": "string"}})
    assert accepts(grammar, [1, "a"]) and accepts(grammar, [])
    assert not accepts(grammar, ["a"]) and not accepts(grammar, [1, 2])


def test_arrays_of_long_values_count_as_several() -> None:
    for length, places in ((10, ()), (30_000, ("/uniqueItems",))):
        schema = {"type": "array", "uniqueItems": True, "items": {"enum": [char * length for char in "abcde"]}}
        assert lower(schema, strict=False)[1] == places


def test_the_complement_of_many_items_is_not_written_out() -> None:
    items = [{"type": "string"}] * 1000
    assert rejection({"not": {"prefixItems": items}}) == "/not has more than 128 ways to fail, the limit"
    some = [True] * 2000 + items[:60]  # each alternative lists all items before its own
    assert "/not makes the schema too large" in rejection({"not": {"prefixItems": some}})
    assert "/not/const makes the schema too large" in rejection({"not": {"const": [1] * 30_000}})
