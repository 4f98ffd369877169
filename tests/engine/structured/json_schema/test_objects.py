"""Objects: names and numbers of properties, and what depends on their presence."""

from typing import Any

from support_json_schema import check, rejection
from support_shares import for_each

INTEGER = {"type": "integer"}
ABC = {"type": "object", "properties": dict.fromkeys("abc", INTEGER), "additionalProperties": False}


@for_each(
    ("names", "matching", "failing"),
    [
        ({"enum": ["a", "b"]}, [{}, {"a": 1}, {"a": 1, "b": 2}], [{"c": 1}, {"a": 1, "c": 1}]),
        ({"const": "a"}, [{}, {"a": 1}], [{"b": 1}]), ({"pattern": "^a"}, [{"ab": 1}], [{"b": 1}]),
        ({"maxLength": 2}, [{"": 1}, {"ab": 1}, {"\u00e4\n": 1}], [{"abc": 1}]),
        ({"minLength": 1}, [{"a": 1}], [{"": 1}]),
        ({"minLength": 2, "maxLength": 3}, [{"ab": 1}], [{"a": 1}, {"abcd": 1}]), (False, [{}], [{"a": 1}]),
        (True, [{"a": 1}], [1]), ({"type": "string"}, [{"a": 1}], [1]), ({"type": "null"}, [{}], [{"a": 1}]),
        ({"not": {"enum": ["a", "ab", "c"]}}, [{"": 1}, {"b": 1}, {"abc": 1}], [{"a": 1}, {"ab": 1}, {"c": 1}]),
        ({"anyOf": [{"const": "x.y"}, {"pattern": "^a"}]}, [{"x.y": 1}, {"abc": 1}], [{"xay": 1}, {"b": 1}]),
        ({"$ref": "#/$defs/n"}, [{"n": 1}], [{"m": 1}]),
    ],
)  # fmt: skip
def test_property_names(names: Any, matching: list[Any], failing: list[Any]) -> None:
    check({"type": "object", "propertyNames": names, "$defs": {"n": {"const": "n"}}}, matching, failing)


def test_property_names_limit_listed_properties_too() -> None:
    schema = {"type": "object", "properties": {"ab": INTEGER, "b": INTEGER}, "propertyNames": {"pattern": "^a"}}
    check(schema, [{}, {"ab": 1}, {"abc": "x"}], [{"b": 1}, {"ab": "x"}])
    assert rejection({"propertyNames": {"pattern": "a"}, "patternProperties": {"b": INTEGER}}).startswith(
        "/propertyNames"
    )
    assert rejection({"propertyNames": {"format": "date"}}).startswith("/propertyNames limits names")


@for_each(
    ("more", "matching", "failing"),
    [
        ({"minProperties": 1}, [{"a": 1}, {"b": 1}, {"a": 1, "c": 1}], [{}]),
        ({"minProperties": 2}, [{"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}], [{}, {"b": 1}]),
        ({"minProperties": 2, "required": ["b"]}, [{"a": 1, "b": 1}, {"b": 1, "c": 1}], [{"b": 1}, {"a": 1, "c": 1}]),
        ({"maxProperties": 1}, [{}, {"b": 1}], [{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}]),
        ({"maxProperties": 2, "required": ["a"]}, [{"a": 1}, {"a": 1, "c": 1}], [{}, {"a": 1, "b": 1, "c": 1}]),
        ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}, {"c": 1}], [{}, {"a": 1, "c": 1}]),
        ({"maxProperties": 7}, [{}, {"a": 1, "b": 1, "c": 1}], [{"d": 1}]),
    ],
)  # fmt: skip
def test_a_number_of_optional_properties(more: Any, matching: list[Any], failing: list[Any]) -> None:
    check({**ABC, **more}, matching, failing)


def test_a_number_of_properties_with_others_beside_the_listed_ones() -> None:
    schema = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}
    check({**schema, "minProperties": 1}, [{"a": 1}, {"b": 1, "x": 2}, {"x": 1}], [{}, {"a": "x"}])
    check({**schema, "maxProperties": 1}, [{}, {"a": 1}, {"x": 1}], [{"a": 1, "b": 1}, {"a": 1, "x": 1}])
    check({**schema, "minProperties": 2, "required": ["a"]}, [{"a": 1, "b": 1}, {"a": 1, "x": 1}], [{"a": 1}])
    assert rejection({**schema, "minProperties": 2}).startswith("/minProperties is 2 beside free names")
    many = {"type": "object", "properties": {str(number): INTEGER for number in range(70)}}
    assert rejection({**many, "minProperties": 1}).startswith("/minProperties leaves more than 64 choices")
    assert rejection({**many, "maxProperties": 1}).startswith("/maxProperties leaves more than 64 choices")


@for_each(
    ("schema", "matching", "failing"),
    [
        ({**ABC, "dependentRequired": {"a": ["b", "c"]}}, [{}, {"b": 1}, {"a": 1, "b": 1, "c": 1}], [{"a": 1, "b": 1}]),
        ({"dependentRequired": {"a": ["b"], "b": ["a"]}}, [{}, {"a": 1, "b": 1}], [{"a": 1}, {"b": 1}]),
        ({**ABC, "dependentRequired": {"a": []}}, [{"a": 1}], [{"d": 1}]),
        ({**ABC, "dependentSchemas": {"a": {"required": ["b"]}, "c": False}}, [{}, {"a": 1, "b": 1}],
         [{"a": 1}, {"c": 1}]),
        ({"type": "object", "dependentSchemas": {"a": {"properties": {"b": INTEGER}}}}, [{"b": "x"}, {"b": 1, "a": 0}],
         [{"b": "x", "a": 0}]),
        ({"not": {"dependentRequired": {"a": ["b"]}}}, [{"a": 1}, {"a": 1, "c": 1}], [{}, {"b": 1}, 1]),
        ({"not": {"dependentSchemas": {"a": {"required": ["b"]}}}}, [{"a": 1}], [{}, {"b": 1}, 1]),
    ],
)  # fmt: skip
def test_dependencies(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    check(schema, matching, failing)


def test_more_dependencies_than_the_limit_are_rejected() -> None:
    schema = {"dependentRequired": {str(number): ["x"] for number in range(7)}}
    assert rejection(schema) == "/dependentRequired has more than 6 properties, the limit"


def test_pattern_properties() -> None:
    check({"type": "object", "patternProperties": {"f": True, "b": False}}, [{"f": 1}], [{"b": 1}, {"fb": 1}])
    assert "(?=" in rejection({"patternProperties": {"(?=a)": INTEGER}})


def test_dependencies_of_json_schema_7_are_enforced() -> None:
    old = {"type": "object", "dependencies": {"a": ["b"], "c": {"required": ["d"]}}}
    new = {"type": "object", "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["d"]}}}
    check(new, [{"a": 1, "b": 1}, {"c": 1, "d": 1}], [{"a": 1}, {"c": 1}])
    check({"allOf": [old, new]}, [{"a": 1, "b": 1}, {"c": 1, "d": 1}], [{"a": 1}, {"c": 1}])
