"""close_objects: which objects of a JSON Schema get no further properties, and which stay open."""

import copy
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift.engine.structured.json_schema.closed_objects import close_objects
from support_grammars import grammar_of
from support_json_schema import accepts, random_output
from support_shares import for_each

NUMBER = {"type": "integer"}
LISTED = {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]}
CLOSED = {**LISTED, "additionalProperties": False}


@for_each(
    ("schema", "closed"),
    [
        (LISTED, CLOSED),
        ({"properties": {}}, {"properties": {}, "additionalProperties": False}),
        ({"items": LISTED, "prefixItems": [LISTED]}, {"items": CLOSED, "prefixItems": [CLOSED]}),
        ({"properties": {"a": LISTED, "$ref": NUMBER}, "title": "t"},
         {"properties": {"a": CLOSED, "$ref": NUMBER}, "title": "t", "additionalProperties": False}),
        ({"anyOf": [LISTED, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"anyOf": [LISTED], "discriminator": {"propertyName": "a"}, "nullable": True, "x-order": 1},
         {"anyOf": [CLOSED], "discriminator": {"propertyName": "a"}, "nullable": True, "x-order": 1}),
        ({**LISTED, "required": None}, {"type": "object", "properties": {"a": NUMBER}, "additionalProperties": False}),
        ({"additionalProperties": LISTED}, {"additionalProperties": CLOSED}),
        ({"$ref": "#/$defs/x~1y", "$defs": {"x/y": LISTED}}, {"$ref": "#/$defs/x~1y", "$defs": {"x/y": CLOSED}}),
        ({"properties": {"next": {"$ref": "#"}}},
         {"properties": {"next": {"$ref": "#"}}, "additionalProperties": False}),
    ],
)  # fmt: skip
def test_an_object_has_only_the_properties_that_are_listed(schema: Any, closed: Any) -> None:
    before = copy.deepcopy(schema)
    assert close_objects(schema) == closed
    assert close_objects(closed) == closed and schema == before


@pytest.mark.parametrize("schema", [
    True, {"type": "object"}, {**LISTED, "additionalProperties": True}, {**LISTED, "required": ["b"]},
    {**LISTED, "patternProperties": {"^x": NUMBER}}, {**LISTED, "minProperties": 2}, {**LISTED, "enum": [{"a": 1}]},
    {"properties": {"a": False}}, {"properties": [LISTED]}, {**LISTED, "required": "a"}, {"$ref": "#/$defs/none"},
    {"allOf": [LISTED, {"properties": {"b": NUMBER}}]}, {"oneOf": [LISTED, {"properties": {"b": NUMBER}}]},
    {"not": LISTED}, {"if": LISTED, "then": {"required": ["b"]}}, {**LISTED, "anyOf": [{"required": ["b"]}, True]},
    {"contains": LISTED, "maxContains": 1}, {**LISTED, "dependentRequired": {"a": ["b"]}},
    {**LISTED, "unevaluatedProperties": NUMBER}, {"$ref": "#name", "$defs": {"x": {"$anchor": "name", **LISTED}}},
    {"$ref": "#/$defs/x", "properties": {"b": NUMBER}, "$defs": {"x": LISTED}},
], ids=str)  # fmt: skip
def test_an_object_stays_open_if_other_schemas_or_keywords_say_what_else_it_has(schema: Any) -> None:
    assert close_objects(schema) == schema


def test_a_definition_that_is_combined_anywhere_stays_open() -> None:
    schema = {
        "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"not": {"$ref": "#/$defs/b"}}, "z": LISTED},
        "$defs": {"a": LISTED, "b": {"$ref": "#/$defs/a"}},
    }
    closed = close_objects(json.loads(json.dumps(schema)))
    assert closed["$defs"] == schema["$defs"]
    assert closed["properties"]["z"] == CLOSED and closed["additionalProperties"] is False


def test_outputs_have_listed_properties_only_and_match() -> None:
    schema = {"type": "object", "properties": {"a": NUMBER, "b": {"type": "array", "items": LISTED}}}
    grammar = grammar_of(json_schema=schema)
    assert accepts(grammar, {"a": 1, "b": [{"a": 1}]})
    assert not accepts(grammar, {"a": 1, "c": 1}) and not accepts(grammar, {"b": [{"a": 1, "c": 1}]})
    for seed in range(8):
        value = random_output(grammar, seed)
        assert value is None or (Draft202012Validator(schema).is_valid(value) and value.keys() <= {"a", "b"})
    assert accepts(grammar_of(json_schema={**schema, "additionalProperties": True}), {"a": 1, "c": 1})


def test_deep_and_large_schemas_are_closed_quickly() -> None:
    deep: Any = NUMBER
    for _ in range(60):
        deep = {"properties": {"a": deep}}
    many = {"properties": {f"p{number}": {"$ref": "#/$defs/d"} for number in range(5000)}, "$defs": {"d": deep}}
    closed = close_objects(many)
    assert closed["additionalProperties"] is False and closed["$defs"]["d"]["additionalProperties"] is False
