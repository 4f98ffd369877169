"""means_any_of: parts that overlap are alternatives where exactly one of them would leave out what is meant."""

from dataclasses import replace
from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.document import TYPES, SchemaDocument
from chairlift.engine.structured.json_schema.implied_types import ImpliedTypes
from chairlift.engine.structured.json_schema.one_of_overlaps import (
    are_nullable_twice,
    is_integer_in_number,
    means_any_of,
    types_allowed_twice,
)
from chairlift.engine.structured.json_schema.possible_types import PossibleTypes
from support_shares import for_each

INTEGER, NUMBER, TEXT = {"type": "integer"}, {"type": "number"}, {"type": "string"}
COLORS = {"type": "string", "enum": ["red", "blue"]}
NULL: Any = {"type": "null"}


def record(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def parts(one: Any, other: Any) -> tuple[PossibleTypes, Any, Any]:
    """Return two parts of a oneOf with their types."""
    definitions = {"text": TEXT, "integers": {"type": "array", "items": INTEGER}}
    document = SchemaDocument({"oneOf": [one, other], "$defs": definitions}, LoweringBudget())
    types = PossibleTypes(document, ImpliedTypes(document))
    children = (document.root.child("oneOf", index) for index in range(2))
    return types, *(replace(child, value_types=types.of(child)) for child in children)  # type: ignore[return-value]


@for_each(
    ("one", "other", "expected"),
    [
        (INTEGER, NUMBER, True), (NUMBER, INTEGER, True), ({**INTEGER, "minimum": 1}, NUMBER, True),
        (INTEGER, {"minimum": 2}, False), (INTEGER, {}, False), (INTEGER, TEXT, False), (NUMBER, NUMBER, False),
        ({"type": ["integer", "null"]}, {"type": ["number", "null"]}, True), (True, NUMBER, False),
        ({**INTEGER, "minimum": 5}, {**NUMBER, "minimum": 0}, True), ({**INTEGER, "minimum": 0}, {**NUMBER,
         "minimum": 5}, False),
        # Beside types that only one of them has.
        ({"type": ["string", "integer"]}, NUMBER, True),
        ({"type": ["boolean", "number"]}, {"type": ["integer", "null"]}, True),
        ({"type": ["string", "integer"]}, {"type": ["string", "number"], "maxLength": 3}, False),
        ({"type": ["string", "integer"], "minimum": 0}, {**NUMBER, "minimum": 5}, False),
        # Inside of arrays and objects, if nothing else differs: the complement of the rest can be expressed.
        (array(INTEGER), array(NUMBER), True), (array(NUMBER), array(INTEGER), True),
        (array(array(INTEGER)), array(array(NUMBER)), True), ({"$ref": "#/$defs/integers"}, array(NUMBER), True),
        (array({**INTEGER, "minimum": 0}), array(NUMBER), False), (array(TEXT), array(COLORS), False),
        (record(["v"], v=INTEGER, t=TEXT), record(["v"], t=TEXT, v=NUMBER), True),
        (record(["v"], v=INTEGER, t=TEXT), record(["v"], v=NUMBER, t=COLORS), False),
        (record(["v"], v=INTEGER), record([], v=NUMBER), False), (array(INTEGER), array(INTEGER), False),
        ({"additionalProperties": INTEGER}, {"additionalProperties": NUMBER}, True),
        ({"items": [INTEGER, TEXT], "additionalItems": False}, {"items": [NUMBER, TEXT], "additionalItems": False},
         True), ({"items": [INTEGER, TEXT]}, {"items": [NUMBER]}, False),
        ({"anyOf": [INTEGER, TEXT]}, {"anyOf": [NUMBER, TEXT]}, True),
        ({"dependencies": {"a": ["b"], "v": {"items": INTEGER}}}, {"dependencies": {"a": ["b"], "v": {"items":
         NUMBER}}}, True),
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
        # Bounds.
        ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 9}, True), ({**TEXT, "minLength": 1}, {**TEXT, "minLength":
         3}, True), ({**INTEGER, "minimum": 0}, {**INTEGER, "minimum": 5}, True),
        ({**INTEGER, "minimum": 0}, {**INTEGER, "maximum": 5}, False), ({"const": 7}, {**INTEGER, "minimum": 5}, True),
        (array(TEXT), {**array(TEXT), "minItems": 1}, True), (INTEGER, {"minimum": 2}, True),
        # Implied types.
        ({"properties": {"a": INTEGER}}, {"properties": {"b": INTEGER}}, True), (TEXT, {"required": ["a"]}, True),
        ({"required": ["a"]}, {"required": ["a", "b"]}, True), ({"items": TEXT}, {"minLength": 1}, True),
        ({"$ref": "#/$defs/text"}, {"required": ["a"]}, True),
        # Types of several.
        ({"type": ["string", "null"], "maxLength": 5}, {"type": ["string", "integer"]}, True),
        ({"type": ["string", "object"], "required": ["a"], "maxLength": 5}, {"type": "object", "required": ["b"]},
         False), ({"allOf": [record(["a"]), {"required": ["c"]}]}, record(["a"], a=TEXT), True),
        ({"allOf": [record(["a"]), {"required": ["c"]}]}, record(["a", "b"], a=TEXT), False),
        ({"anyOf": [record(["a"]), TEXT]}, record(["a"], a=TEXT), True),
        # Arrays, by their items.
        (array(TEXT), array(COLORS), True), (array({"type": "object"}), array(record([], a=TEXT)), True),
        (array(record(["a"], a=TEXT)), array(record(["a", "b"], b=TEXT)), True), (array(TEXT), array(INTEGER), False),
        (array(record(["a"])), array(record(["b"])), False), (array(array(TEXT)), array(array(COLORS)), True),
        (array(TEXT), array({"required": ["a"]}), True),
    ],
)  # fmt: skip
def test_parts_that_are_alternatives(one: Any, other: Any, expected: bool) -> None:
    assert means_any_of(*parts(one, other)) is expected


@for_each(
    ("one", "other", "expected", "by_keyword"),
    [
        ({"type": ["string", "null"]}, {"type": ["integer", "null"]}, ["null"], False),
        ({**TEXT, "nullable": True}, {**INTEGER, "nullable": True}, ["null"], True),
        ({**TEXT, "nullable": True}, {"type": ["integer", "null"]}, ["null"], False),
        ({"anyOf": [TEXT, NULL]}, {"oneOf": [INTEGER, NULL]}, ["null"], False),
        ({"anyOf": [TEXT, NULL]}, {"anyOf": [INTEGER, NULL]}, ["null"], False),
        ({"enum": ["a", None]}, {"enum": ["b", None]}, ["null"], False), ({}, NULL, ["null"], False),
        ({"$ref": "#/$defs/text", "nullable": True}, {"allOf": [INTEGER], "nullable": True}, ["null"], True),
        ({"type": ["string", "integer"]}, {"type": ["string", "null"]}, ["string"], False),
        ({"type": ["string", "integer"], "maxLength": 5}, {"type": ["string", "null"]}, [], False),
        ({"type": ["object", "string"], "required": ["a"]}, {"type": ["object", "string"]}, ["string"], False),
        ({"required": ["a"]}, {"required": ["b"]}, [], False), (TEXT, INTEGER, [], False), (NUMBER, INTEGER, [], False),
        ({"type": "boolean"}, {"enum": [True, False, "auto"]}, ["boolean"], False), (True, {}, list(TYPES), False),
    ],
)  # fmt: skip
def test_types_all_of_whose_values_match_both(one: Any, other: Any, expected: list[str], by_keyword: bool) -> None:
    types, *pair = parts(one, other)
    assert types_allowed_twice(types, pair) == frozenset(expected)
    assert are_nullable_twice(types.document, pair) is by_keyword
