"""Lowering: supported schemas stay as they are, others are rewritten, and lenient mode names what it ignores."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.lowering import lower
from chairlift.engine.structured.json_schema.objects import MAX_DEPENDENCIES
from support_grammars import grammar_of
from support_json_schema import accepts, check, check_outputs, random_output, rejection
from support_shares import for_each

KIND = {"type": "object", "properties": {"kind": {"enum": ["circle", "square"]}}, "required": ["kind"]}
CIRCLE = {"properties": {"kind": {"const": "circle"}}, "required": ["kind"]}


def test_a_supported_schema_stays_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {"b": {"type": "integer", "minimum": 1}, "a": {"enum": ["x", None]},
         "c": {"type": "array", "items": True}},
        "required": ["a"],
        "additionalProperties": False,
    }  # fmt: skip
    lowered, ignored = lower(
        {**schema, "title": "T", "$schema": "https://json-schema.org/draft/2020-12/schema"}, strict=True
    )
    assert lowered["properties"].pop("c") == {"type": "array"}
    schema["properties"].pop("c")  # type: ignore[attr-defined]
    assert (lowered, ignored) == (schema, ()) and list(lowered["properties"]) == ["b", "a"]
    assert lower(True, strict=True) == lower({}, strict=True) == (True, ())


def test_exclusive_bounds_of_json_schema_4() -> None:
    schema = {"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 4, "exclusiveMaximum": False}
    grammar = grammar_of(json_schema=schema)
    assert [number for number in range(7) if accepts(grammar, number)] == [2, 3, 4]


def test_lowering_twice_changes_nothing() -> None:
    for schema in (
        {"not": {"enum": ['a"', 1]}},
        {"contains": {"const": 1}},
        {"oneOf": [{"minimum": 2.5}, {"maximum": 4}]},
    ):
        lowered, _ = lower(schema, strict=True)
        again, _ = lower(lowered, strict=True)
        assert json.dumps(again).count("$ref") == json.dumps(lowered).count("$ref")
        for value in (1, 2, 3, 5, 'a"', "a", [1], [2], [2, 1], None):
            assert accepts(grammar_of(json_schema=lowered), value) == accepts(grammar_of(json_schema=again), value)


@for_each(
    ("schema", "matching", "failing"),
    [
        ({**KIND, "if": CIRCLE, "then": {"required": ["radius"]}, "else": {"required": ["side"]}},
         [{"kind": "circle", "radius": 1}, {"kind": "square", "side": 1}],
         [{"kind": "circle", "side": 1}, {"kind": "square"}]),
        ({**KIND, "if": CIRCLE, "then": {"required": ["radius"]}},
         [{"kind": "circle", "radius": 1}, {"kind": "square"}],
         [{"kind": "circle"}, {}]),
        ({"if": {"type": "string"}, "else": {"type": "integer"}}, ["a", 1], [1.5, None]),
        ({"if": True, "then": {"type": "null"}, "else": False}, [None], [1]), ({"if": {"type": "null"}}, [None, 1], []),
        ({"then": False, "else": False}, [1], []), ({"type": "integer", "if": {"minimum": 5}, "then": {"maximum": 7}},
         [4, 7], [8]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1], [2, 3]),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, [{"a": 1}, {"b": 1}],
         [{}, {"a": 1, "b": 1}]),
        ({"oneOf": [{**KIND, **CIRCLE}, {**KIND, "properties": {"kind": {"const": "square"}}}]}, [{"kind": "circle"}],
         [{}]),
        ({"type": "string", "oneOf": [{"minLength": 2}, {"maxLength": 3}]}, ["", "a", "abcd"], ["ab", "abc"]),
        ({"oneOf": [{"const": number} for number in range(60)]}, [0, 59], [60, 0.5]),
        ({"anyOf": [{"type": "null"}, {"type": "string"}], "allOf": [True, {"maxLength": 1}]}, [None, "a"], ["ab", 1]),
        ({"format": "json-pointer", "type": "string"}, ["", "/a~1"], ["a", "/~"]),
         ({"type": "integer", "format": "int64"}, [1], ["a"]),
        ({"type": "string", "format": "relative-json-pointer"}, ["0#", "1/a"], ["", "/a"]),
    ],
)  # fmt: skip
def test_rewritten_keywords(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    if "format" in json.dumps(schema):  # an annotation for the validator
        grammar = check_outputs(schema)
        assert all(accepts(grammar, value) for value in matching) and not any(
            accepts(grammar, value) for value in failing
        )
    else:
        check(schema, matching, failing)


@for_each(
    ("schema", "matching", "failing"),
    [
        ({"type": "string", "nullable": True}, ["a", None], [1]),
        ({"enum": ["a"], "nullable": True}, ["a", None], ["b"]),
        ({"$ref": "#/$defs/x", "nullable": True, "$defs": {"x": {"type": "integer"}}}, [1, None], ["a"]),
        ({"allOf": [{"$ref": "#/$defs/x"}], "nullable": True, "$defs": {"x": KIND}}, [{"kind": "circle"}, None], [{}]),
        ({"properties": {"a": {"type": "string", "nullable": True}}}, [{"a": None}], [{"a": 1}]),
        ({"not": {"type": "string", "nullable": True}}, [1], ["a", None]),
        ({"oneOf": [{"type": "string", "nullable": True}, {"type": "null"}]}, ["a"], [None, 1]),
        ({"type": "string", "nullable": False}, ["a"], [None]), ({"type": "string", "nullable": "yes"}, ["a"], [None]),
    ],
)  # fmt: skip
def test_nullable_of_openapi_allows_null(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    grammar = grammar_of(json_schema=schema)
    assert [value for value in matching if not accepts(grammar, value)] == []
    assert [value for value in failing if accepts(grammar, value)] == []


@pytest.mark.parametrize("strict", [True, False])
def test_a_format_that_json_schema_does_not_have_is_an_annotation(strict: bool) -> None:
    for name in ("password", "decimal", "int64"):
        lowered, places = lower({"type": "string", "format": name}, strict=strict)
        assert (lowered, places) == ({"type": "string"}, ("/format",))
    assert lower({"type": "string", "format": "uuid4"}, strict=strict) == ({"type": "string", "format": "uuid"}, ())


@for_each(
    ("schema", "ignored"),
    [
        ({"properties": {"tags": {"type": "array", "uniqueItems": True}}}, ["/properties/tags/uniqueItems"]),
        ({"not": {"pattern": "a"}, "type": "string"}, ["/not"]), ({"pattern": "(?=a)", "type": "string"}, ["/pattern"]),
        ({"type": "string", "format": "regex"}, ["/format"]), ({"if": {"pattern": "a"}, "then": False}, ["/if"]),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}, ["/oneOf"]),
        ({"contains": {"pattern": "a"}, "maxContains": 2, "type": "array"}, ["/contains"]),
        ({"if": {"pattern": "a"}, "then": {"required": ["b"]}, "unevaluatedProperties": False},
         ["/unevaluatedProperties", "/if"]),
        ({"$defs": {"a/b": {"uniqueItems": True}}, "items": {"$ref": "#/$defs/a~1b"}}, ["/$defs/a~1b/uniqueItems"]),
        ({"$defs": {"unused": {"uniqueItems": True}}, "type": "null"}, []),
        ({"type": "object", "minProperties": 3}, ["/minProperties"]),
        ({"dependentRequired": {str(number): ["x"] for number in range(MAX_DEPENDENCIES + 1)}}, ["/dependentRequired"]),
        ({"items": {"$ref": "http://a.invalid/b"}}, ["/items/$ref"]),
        ({"type": "number", "multipleOf": 0.1234567891}, ["/multipleOf"]),
    ],
)  # fmt: skip
def test_lenient_mode_names_what_it_ignores(schema: Any, ignored: list[str]) -> None:
    lowered, places = lower(schema, strict=False)
    assert list(places) == ignored
    if ignored:
        with pytest.raises(UnsupportedSchemaError):
            lower(schema, strict=True)
    check_outputs(lowered, count=2)


def test_lenient_mode_still_enforces_the_rest() -> None:
    tool = {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
            "level": {"type": "integer", "not": {"multipleOf": 2}, "minimum": 1},
            "mode": {"if": {"pattern": "a"}, "then": {"type": "null"}, "enum": ["a", "b"]},
            "list": {"type": "array", "contains": {"const": 1}},
        },
        "required": ["level"],
        "additionalProperties": False,
    }  # fmt: skip
    lowered, ignored = lower(tool, strict=False)
    assert ignored == ("/properties/tags/uniqueItems", "/properties/level/not", "/properties/mode/if")
    grammar = check_outputs(lowered)
    assert accepts(grammar, {"tags": ["a", "a"], "level": 2, "mode": "a", "list": [1]})
    for bad in ({"level": 0}, {"tags": [1], "level": 1}, {"level": 1, "mode": "c"}, {"level": 1, "list": [2]}, {}):
        assert not accepts(grammar, bad)


@pytest.mark.parametrize("strict", [True, False])
def test_a_malformed_schema_is_rejected_in_both_modes(strict: bool) -> None:
    for schema in ({"type": "text"}, {"$ref": "#/absent"}, {"not": {}}, {"minimum": "a"}, False):
        with pytest.raises(ValueError, match=r"type|absent|no output|minimum"):
            lower(schema, strict=strict)


@pytest.mark.full
@pytest.mark.timeout(60)
def test_large_and_nested_schemas_end() -> None:
    nested: Any = {"const": 1}
    for _ in range(25):
        nested = {"if": nested, "then": {"minimum": 1}, "else": {"maximum": 3}}
    assert "too large" in rejection(nested)
    one_of: Any = {"const": 1}
    for _ in range(12):
        one_of = {"oneOf": [one_of, {"not": one_of}, {"minimum": 3}]}
    assert "too large" in rejection(one_of)
    chain = {str(number): {"$ref": f"#/$defs/{number + 1}"} for number in range(2000)}
    assert "nested deeper" in rejection({"not": {"$ref": "#/$defs/0"}, "$defs": {**chain, "2000": {"type": "null"}}})
    assert (
        len(lower({"$ref": "#/$defs/0", "$defs": {**chain, "2000": {"type": "null"}}}, strict=True)[0]["$defs"]) == 2001
    )
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(5000)}}
    assert len(lower(many, strict=True)[0]["properties"]) == 5000
    assert "overlapping" in rejection({"oneOf": [{"minLength": number} for number in range(30)]})


# -- random schemas ------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 4) | st.sampled_from([1.5, "", "a", "b", "ab"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.lists(st.sampled_from("abc"), max_size=2, unique=True)
TYPE = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas of a few keywords whose parts are `inner`."""
    schemas, some = st.dictionaries(st.sampled_from("abc"), inner, max_size=2), st.lists(inner, min_size=1, max_size=3)
    by_name = {
        "type": TYPE, "enum": st.lists(VALUES, min_size=1, max_size=3), "const": VALUES, "minimum": st.integers(0, 3),
        "exclusiveMaximum": st.sampled_from([1, 2, 2.5]), "exclusiveMinimum": st.sampled_from([1, 2, 0.5]),
        "maxLength": st.integers(0, 2), "pattern": st.sampled_from(["^a", "b$", '^[^"]*$']),
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 3), "properties": schemas, "required": NAMES, "minProperties": st.integers(0, 1),
        "maxProperties": st.integers(0, 2), "additionalProperties": inner, "items": inner, "prefixItems": some,
        "contains": inner, "maxContains": st.integers(0, 2), "minContains": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "propertyNames": st.sampled_from([{"enum": ["a"]}, {"pattern": "^a"}, {"not": {"const": "b"}},
         {"maxLength": 1}]),
        "dependentRequired": st.dictionaries(st.sampled_from("abc"), NAMES, max_size=1), "dependentSchemas": schemas,
        "if": inner, "then": inner, "else": inner, "not": inner, "allOf": some, "anyOf": some, "oneOf": some,
        "unevaluatedProperties": st.just(False) | inner, "unevaluatedItems": st.just(False) | inner,
    }  # fmt: skip
    return st.lists(st.sampled_from(sorted(by_name)), min_size=1, max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: by_name[name] for name in names})
    )


SCHEMAS = st.recursive(st.booleans() | TYPE.map(lambda name: {"type": name}), keywords, max_leaves=6)


@pytest.mark.full
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), st.lists(VALUES, min_size=8, max_size=8), st.booleans())
def test_each_value_of_a_random_schema_matches_the_original(schema: Any, values: list[Any], strict: bool) -> None:
    try:
        lowered, ignored = lower(schema, strict=strict)
        grammar = grammar_of(json_schema=lowered)
    except (ValueError, AssertionError):  # rejected by lower(), or by llguidance as unsatisfiable
        return
    assert not (strict and ignored)
    validator = Draft202012Validator(schema if not ignored else True)
    for seed in range(3):
        value = random_output(grammar, seed)
        assert value is None or validator.is_valid(value), value
    assert [value for value in values if accepts(grammar, value) and not validator.is_valid(value)] == []
