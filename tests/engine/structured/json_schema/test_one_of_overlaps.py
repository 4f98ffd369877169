"""oneOf: parts that overlap are alternatives where exactly one of them would leave out what is meant."""

from typing import Any

import pytest

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.document import SchemaDocument
from chairlift.engine.structured.json_schema.lowering import lower
from chairlift.engine.structured.json_schema.one_of_overlaps import (
    is_contained,
    is_integer_in_number,
    means_any_of,
)
from support_grammars import grammar_of
from support_json_schema import accepts, check, rejection
from support_shares import for_each

INTEGER, NUMBER, TEXT = {"type": "integer"}, {"type": "number"}, {"type": "string"}
COLORS = {"type": "string", "enum": ["red", "blue"]}


def record(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def parts(one: Any, other: Any) -> tuple[SchemaDocument, Any, Any]:
    document = SchemaDocument({"oneOf": [one, other], "$defs": {"text": TEXT}}, LoweringBudget())
    return document, document.root.child("oneOf", 0), document.root.child("oneOf", 1)


@for_each(
    ("inner", "outer", "expected"),
    [
        (INTEGER, NUMBER, True), (NUMBER, INTEGER, False), (COLORS, TEXT, True), (TEXT, COLORS, False),
        (COLORS, {"enum": ["red", "blue", 1]}, True), ({"const": 1}, INTEGER, True), ({"const": 1.5}, INTEGER, False),
        (COLORS, {"const": "red"}, False), (TEXT, {**TEXT, "title": "t"}, True), (TEXT, {}, True), (TEXT, True, True),
        (False, TEXT, True), (TEXT, False, False), (True, {}, True), (True, TEXT, False), ({}, TEXT, False),
        ({**TEXT, "minLength": 2}, TEXT, True), (TEXT, {**TEXT, "minLength": 2}, False),
        ({**INTEGER, "minimum": 1}, {**NUMBER, "minimum": 1}, True), (TEXT, {"$ref": "#/$defs/text"}, True),
        ({"$ref": "#/$defs/text"}, {"type": ["string", "null"]}, True), ({**TEXT, "nullable": True}, TEXT, False),
        (TEXT, {**TEXT, "nullable": True}, False),
    ],
)  # fmt: skip
def test_a_schema_that_is_contained_in_another_one(inner: Any, outer: Any, expected: bool) -> None:
    assert is_contained(*parts(inner, outer)) is expected


@for_each(
    ("one", "other", "expected"),
    [
        (INTEGER, NUMBER, True), (NUMBER, INTEGER, True), ({**INTEGER, "minimum": 1}, NUMBER, True),
        (INTEGER, {"minimum": 2}, False), (INTEGER, {}, False), (INTEGER, TEXT, False), (NUMBER, NUMBER, False),
        ({"type": ["integer", "null"]}, {"type": ["number", "null"]}, True), (True, NUMBER, False),
    ],
)  # fmt: skip
def test_an_integer_beside_a_number(one: Any, other: Any, expected: bool) -> None:
    assert is_integer_in_number(*parts(one, other)) is expected


@for_each(
    ("one", "other", "expected"),
    [
        (TEXT, COLORS, True), ({**INTEGER, "minimum": 0}, {**NUMBER, "maximum": 9}, True), (TEXT, TEXT, True),
        (record(["id"], id=TEXT), record(["id", "n"], id=TEXT, n=TEXT), True),
        (record(["id"], id=TEXT, x=TEXT), record(["id"], id=TEXT, n=TEXT), True),
        (record(["a"], a=TEXT), record(["b"], b=TEXT), False), (True, False, True),
        ({"required": ["a"]}, {"required": ["b"]}, False), ({"enum": ["a", "b"]}, {"enum": ["b", "c"]}, False),
        ({**TEXT, "minLength": 2}, {**TEXT, "maxLength": 3}, False),
    ],
)  # fmt: skip
def test_parts_that_are_alternatives(one: Any, other: Any, expected: bool) -> None:
    assert means_any_of(*parts(one, other)) is expected


@for_each(
    ("schema", "matching", "failing"),
    [
        ({"oneOf": [TEXT, COLORS]}, ["red", "x"], [1]), ({"oneOf": [TEXT, TEXT]}, ["x"], [1]),
        ({"oneOf": [{"$ref": "#/$defs/text"}, COLORS], "$defs": {"text": TEXT}}, ["red", "x"], [1]),
        ({"oneOf": [record(["id"], id=TEXT), record(["id", "n"], id=TEXT, n=TEXT)]},
         [{"id": "x"}, {"id": "x", "n": "y"}], [{}, 1]),
        ({"oneOf": [{**TEXT, "format": "date"}, {**TEXT, "pattern": "^a"}]}, ["2026-01-31", "a"], ["x", 1]),
        ({"oneOf": [record([], a=INTEGER), record([], b=TEXT)], "unevaluatedProperties": False},
         [{"a": 1}, {"b": "x"}, {}], [{"c": 1}]),
    ],
)  # fmt: skip
def test_alternatives_are_allowed_and_named_unless_strict(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    lowered, places = lower(schema, strict=False)
    assert places == ("/oneOf",)
    grammar = grammar_of(json_schema=lowered)
    assert [value for value in matching if not accepts(grammar, value)] == []
    assert [value for value in failing if accepts(grammar, value)] == []


@pytest.mark.parametrize("strict", [True, False])
def test_an_integer_or_a_number_is_a_number_in_both_modes(strict: bool) -> None:
    for schema, place in (
        ({"oneOf": [INTEGER, NUMBER]}, "/oneOf"),
        ({"type": "object", "properties": {"v": {"oneOf": [NUMBER, INTEGER, TEXT]}}}, "/properties/v/oneOf"),
    ):
        lowered, places = lower(schema, strict=strict)
        assert places == (place,)
        for value in (1, 1.5, -3):
            assert accepts(grammar_of(json_schema=lowered), value if place == "/oneOf" else {"v": value})


@pytest.mark.parametrize("strict", [True, False])
def test_parts_that_a_grammar_can_tell_apart_stay_exclusive(strict: bool) -> None:
    for schema, matching, failing in (
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, {"a": 1, "b": 1}),
        ({"oneOf": [{**TEXT, "minLength": 2}, {**TEXT, "maxLength": 3}]}, "a", "ab"),
        ({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, "a", "b"),
        ({"oneOf": [record(["k"], k={"const": "a"}), record(["k"], k={"const": "b"})]}, {"k": "b"}, {"k": "c"}),
    ):
        lowered, places = lower(schema, strict=strict)
        assert places == ()
        check(lowered, [matching], [failing])


def test_a_condition_is_exact() -> None:
    """A value that two parts of a oneOf match fails the condition, whatever the mode is."""
    schema = {"not": {"not": {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 1, 3]}]}}}
    lowered, places = lower(schema, strict=False)
    grammar = grammar_of(json_schema=lowered)
    assert places == () and accepts(grammar, 3) and not accepts(grammar, 1)


def test_strict_parts_that_leave_no_value_are_rejected() -> None:
    for one in (TEXT, {"$ref": "#/$defs/text"}):
        message = rejection({"oneOf": [one, TEXT], "$defs": {"text": TEXT}})
        assert message == "/oneOf allows no value, because each part is contained in another one; use anyOf"
