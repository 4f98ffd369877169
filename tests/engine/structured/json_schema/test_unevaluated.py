"""unevaluatedProperties and unevaluatedItems see what the rest of the schema evaluates."""

from typing import Any

from support_json_schema import check, rejection
from support_shares import for_each

A, B = {"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}
CLOSED = {"type": "object", "unevaluatedProperties": False}


@for_each(
    ("schema", "matching", "failing"),
    [
        ({**A, **CLOSED}, [{}, {"a": 1}], [{"b": 1}, {"a": "x"}]),
        ({**A, **CLOSED, "allOf": [B]}, [{"b": "x"}, {"a": 1, "b": "x"}], [{"a": 1}, {"b": "x", "c": 1}]),
        ({**A, **CLOSED, "$ref": "#/$defs/b", "$defs": {"b": B}}, [{"a": 1, "b": "x"}], [{"a": 1, "b": "x", "c": 1}]),
        ({**A, **CLOSED, "anyOf": [B, {"required": ["a"]}]}, [{"a": 1}, {"b": "x"}], [{}, {"a": 1, "c": 1}]),
        ({**A, **CLOSED, "oneOf": [B, {"required": ["a"]}]}, [{"a": 1}, {"b": "x"}], [{}, {"a": 1, "b": "x"}]),
        ({**A, **CLOSED, "if": {"required": ["a"]}, "then": B}, [{}, {"a": 1, "b": "x"}], [{"a": 1}, {"b": "x"}]),
        ({**A, **CLOSED, "if": {"required": ["a"]}, "else": B}, [{"a": 1}, {"b": "x"}], [{"a": 1, "b": "x"}, {}]),
        ({**A, **CLOSED, "dependentSchemas": {"a": B}}, [{}, {"a": 1, "b": "x"}], [{"a": 1}, {"b": "x"}]),
        ({**A, **CLOSED, "patternProperties": {"^x": True}}, [{"a": 1, "xy": 1}], [{"y": 1}]),
        ({**A, **CLOSED, "additionalProperties": {"type": "null"}}, [{"a": 1, "z": None}], [{"z": 1}]),
        ({**A, "type": "object", "unevaluatedProperties": {"type": "null"}}, [{"a": 1, "z": None}], [{"z": 1}]),
        ({**A, **CLOSED, "allOf": [{"unevaluatedProperties": True}]}, [{"z": 1}], [{"a": "x"}]),
        ({"allOf": [A, {"unevaluatedProperties": False}]}, [{}], [{"a": 1}]),
        ({**A, **CLOSED, "not": B}, [{"a": 1}], [{"b": "x"}, {"z": 1}]),
    ],
)  # fmt: skip
def test_unevaluated_properties(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    check(schema, matching, failing)


@for_each(
    ("schema", "matching", "failing"),
    [
        ({"prefixItems": [{"type": "string"}]}, [[], ["a"]], [["a", 1], [1]]), ({}, [[]], [[1]]),
        ({"items": {"type": "string"}}, [["a", "b"]], [[1]]),
        ({"prefixItems": [True], "allOf": [{"prefixItems": [True, {"type": "null"}]}]}, [[1, None]],
         [[1, 2], [1, None, 1]]),
        ({"anyOf": [{"prefixItems": [{"const": 1}, True]}, {"prefixItems": [{"const": 2}]}]}, [[1, 5], [2]],
         [[2, 5], [3]]),
        ({"contains": {"const": 1}}, [[1], [1, 1]], [[], [1, 2]]),
        ({"contains": {"const": 1}, "prefixItems": [True]}, [[5, 1], [1]], [[5, 1, 2], [5]]),
    ],
)  # fmt: skip
def test_unevaluated_items(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    check({"type": "array", "unevaluatedItems": False, **schema}, matching, failing)


def test_too_many_ways_to_match_are_rejected() -> None:
    choice = {"anyOf": [{"properties": {name: True}, "required": [name]} for name in "abcde"]}
    assert "more than 64 ways" in rejection({"allOf": [choice, choice, choice], "unevaluatedProperties": False})
    cycle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}, "unevaluatedProperties": False}
    assert "more than 24 schemas of the same value" in rejection(cycle)
