"""are_disjoint: schemas that certainly share no value."""

from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.disjoint_schemas import are_disjoint
from chairlift.engine.structured.json_schema.document import SchemaDocument
from chairlift.engine.structured.json_schema.implied_types import ImpliedTypes
from chairlift.engine.structured.json_schema.possible_types import PossibleTypes
from support_shares import for_each

TEXT, NULL = {"type": "string"}, {"type": "null"}


def tagged(value: Any) -> Any:
    return {"type": "object", "properties": {"kind": {"const": value}}, "required": ["kind"]}


def untyped(value: Any) -> Any:
    return {"properties": {"kind": {"const": value}}, "required": ["kind"]}


@for_each(
    ("one", "other", "expected"),
    [
        (TEXT, NULL, True), ({"type": "integer"}, {"type": "number"}, False),
        ({"const": 1}, {"const": 1.0}, False), ({"enum": [1, 2]}, {"enum": [3]}, True), ({"const": 1}, TEXT, True),
        ({"const": 1.5}, {"type": "integer"}, True), ({"enum": [1, "a"], "type": "string"}, {"const": 1}, True),
        (tagged("a"), tagged("b"), True), (tagged("a"), tagged("a"), False),
        (tagged("a"), {**tagged("b"), "type": ["null", "object"]}, True),
        ({**tagged("a"), "type": ["null", "object"]}, {**tagged("b"), "type": ["null", "object"]}, False),
        # Outputs have the implied types, so values of other types are not shared.
        (untyped("a"), untyped("b"), True), (untyped("a"), tagged("b"), True), (untyped("a"), untyped("a"), False),
        # A schema about objects matches each string.
        (TEXT, untyped("a"), False), (NULL, untyped("a"), False), ({"minLength": 1}, {"minItems": 1}, False),
        ({"type": "object", "properties": {"x": untyped("a")}, "required": ["x"]},
         {"type": "object", "properties": {"x": untyped("b")}, "required": ["x"]}, True),
        # Several schemas of one value.
        ({"allOf": [tagged("a"), {"required": ["n"]}]}, {"allOf": [{"required": ["n"]}, tagged("b")]}, True),
        ({"required": ["kind"], "allOf": [{"properties": {"kind": {"const": "a"}}}]}, tagged("b"), True),
        ({"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/b"}], "title": "b"}, True),
        ({"anyOf": [tagged("a"), NULL]}, tagged("b"), True), ({"anyOf": [tagged("a"), TEXT]}, tagged("b"), True),
        ({"oneOf": [tagged("a"), NULL]}, {"oneOf": [{"$ref": "#/$defs/b"}, TEXT]}, False),  # null matches /$defs/b
        ({"oneOf": [tagged("a"), NULL]}, {"oneOf": [{**TEXT, "minLength": 1}, tagged("b")]}, True),
        ({"anyOf": [tagged("a"), NULL]}, {"anyOf": [tagged("b"), NULL]}, False),
        ({"anyOf": [tagged("a"), tagged("c")]}, tagged("b"), False),
        # Null by nullable matches nothing else.
        ({"$ref": "#/$defs/a", "nullable": True}, NULL, False), ({"$ref": "#/$defs/a", "nullable": True}, tagged("b"),
         True),
        ({**tagged("a"), "nullable": True}, {**tagged("b"), "nullable": True}, False),
        ({"enum": ["a"], "nullable": True}, {"enum": [None]}, False), ({"enum": ["a"], "nullable": True},
         {"enum": ["b"]}, True),
        ({"type": "object", "required": ["a"]}, {"type": "object", "properties": {"a": False}}, True),
        ({"type": "object", "required": ["a"]}, {"type": "object", "additionalProperties": False}, True),
        ({"type": "object", "required": ["a"]}, {"type": "object", "patternProperties": {"a": {}},
         "additionalProperties": False}, False),
        ({"$ref": "#/$defs/c"}, {"const": "d"}, True), ({"$ref": "#/$defs/loop"}, {"const": "d"}, False),
        (True, False, True), (True, {}, False), ({"$ref": "http://a.invalid/b"}, TEXT, False),
    ],
)  # fmt: skip
def test_disjoint_schemas(one: Any, other: Any, expected: bool) -> None:
    definitions = {"c": {"const": "c"}, "loop": {"$ref": "#/$defs/loop"}, "a": untyped("a"), "b": untyped("b")}
    document = SchemaDocument({"allOf": [one, other], "$defs": definitions}, LoweringBudget())
    types = PossibleTypes(document, ImpliedTypes(document))
    first, second = document.root.child("allOf", 0), document.root.child("allOf", 1)
    assert are_disjoint(types, first, second) == are_disjoint(types, second, first) == expected
