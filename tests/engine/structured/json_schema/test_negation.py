"""Complements: `not` of each keyword that has one."""

from typing import Any

from support_json_schema import check, rejection
from support_shares import for_each

KIND = {"properties": {"kind": {"const": "x"}}, "required": ["kind"]}


@for_each(
    ("excluded", "matching", "failing", "lost"),
    [
        ({"type": "string"}, [1, 1.5, None, {}, []], ["", "a"], []),
        ({"type": ["object", "null"]}, [1, "a", True, []], [None, {}], []),
        ({"type": "integer"}, ["a", None], [1, -3], [1.5]), ({"type": "number"}, ["a"], [1, 1.5], []),
        ({"const": "ab"}, ["", "a", "b", "abc", "ba", 1, None], ["ab"], []),
        ({"enum": ["a", "a\"\n", 1, 2.5, True, None]}, ["", "ab", 2, 1.5, 2.4, 3, False, {}, []],
         ["a", "a\"\n", 1, 2.5, True, None], []),
        ({"const": {"a": 1}}, [{}, {"a": 2}, {"a": 1, "b": 1}, 1], [{"a": 1}], []),
        ({"minimum": 3}, [2, 2.9], [3, 4, "a"], []), ({"exclusiveMaximum": 0}, [0, 1], [-1, "a"], []),
        ({"minLength": 2}, ["", "a"], ["ab", 1], []), ({"maxLength": 2}, ["abc"], ["ab", 1], []),
        ({"minItems": 1}, [[]], [[1], 1], []), ({"minItems": 1, "type": "array"}, [[], 1], [[1]], []),
        ({"maxProperties": 0}, [{"a": 1}, {"a": 1, "b": 2}], [{}, 1], []), ({"minProperties": 1}, [{}], [{"a": 1}], []),
        ({"required": ["a", "b"]}, [{}, {"a": 1}, {"b": 1, "c": 2}], [{"a": 1, "b": 1}, 1], []),
        (KIND, [{}, {"kind": "y"}, {"kind": 1}], [{"kind": "x"}, 1], []),
        ({**KIND, "type": "object"}, [{}, 1, {"kind": "y"}], [{"kind": "x"}], []),
        ({"properties": {"a": True}, "additionalProperties": False}, [{"b": 1}, {"a": 1, "b": 1}], [{}, {"a": 1}], []),
        ({"patternProperties": {"a": True}, "type": "object"}, [1], [{}, {"a": 1}], []),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, [2, "a"], [3, 7], []),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [None, []], [3, "a"], []),
        ({"oneOf": [{"minimum": 3}, {"maximum": 5}]}, [3, 4, 5], [2, 6], ["a"]),
        ({"not": {"type": "string"}}, ["a"], [1], []), (False, [1, "a", None], [], []),
        ({"if": {"minimum": 3}, "then": {"maximum": 5}, "else": {"type": "number"}}, [6, 7], [3, 5, 1], []),
        ({"$ref": "#/$defs/short"}, ["abc", 1], ["a", ""], []),
        ({"$ref": "#/$defs/tree"}, [{"next": 1}, {"next": {"next": []}}, 1], [{}, {"next": {}}], []),
    ],
)  # fmt: skip
def test_not(excluded: Any, matching: list[Any], failing: list[Any], lost: list[Any]) -> None:
    definitions = {
        "short": {"type": "string", "maxLength": 2},
        "tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}},
    }
    check({"not": excluded, "$defs": definitions}, matching, failing, lost)


@for_each(
    ("excluded", "place"),
    [
        ({"pattern": "^a"}, "/not/pattern"), ({"multipleOf": 2}, "/not/multipleOf"),
        ({"format": "date"}, "/not/format"),
        ({"type": "array", "uniqueItems": True}, "/not/uniqueItems"), ({"propertyNames": False}, "/not/propertyNames"),
        ({"unevaluatedProperties": False}, "/not/unevaluatedProperties"),
        ({"patternProperties": {"a": False}}, "/not/patternProperties"),
        ({"additionalProperties": {"type": "null"}}, "/not/additionalProperties"),
        ({"const": "a" * 5000}, "/not/const"), ({"oneOf": [True] * 20}, "/not/oneOf"),
        ({"enum": list(range(200))}, "/not/enum"),
        ({"properties": {"a": {"pattern": "b"}}}, "/not/properties/a/pattern"),
    ],
)  # fmt: skip
def test_what_has_no_complement_is_named(excluded: Any, place: str) -> None:
    assert rejection({"not": excluded}).startswith(f"{place} ")


def test_not_within_a_property() -> None:
    schema = {
        "type": "object", "properties": {"color": {"type": "string", "not": {"enum": ["red"]}}, "old": {"not": {}}},
        "required": ["color"], "additionalProperties": False,
    }  # fmt: skip
    check(schema, [{"color": "blue"}, {"color": "re"}], [{"color": "red"}, {"color": "a", "old": 1}, {"color": 1}])


def test_the_complement_of_everything_matches_nothing() -> None:
    for excluded in ({}, True, {"not": False}):
        assert "no output matches the schema: /not allows none" in rejection({"not": excluded})
