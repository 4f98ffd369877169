"""one_of_conditions: outputs of a oneOf match one part, or several where exactly one leaves out what is meant."""

import contextlib
from typing import Any

import pytest

from chairlift.engine.structured.json_schema.lowering import lower
from support_grammars import grammar_of
from support_json_schema import accepts, check, rejection
from support_shares import for_each

INTEGER, NUMBER, TEXT = {"type": "integer"}, {"type": "number"}, {"type": "string"}
COLORS = {"type": "string", "enum": ["red", "blue"]}
NESTED: Any = [{"required": ["a"]}, {"required": ["a", "b"]}]
PAIR: Any = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}
NULL: Any = {"type": "null"}


def record(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


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
        # Arrays and objects of such parts.
        ({"oneOf": [array(TEXT), array(COLORS)]}, [["red"], ["x"], []], [[1]]),
        ({"oneOf": [array({"type": "object"}), array(record([], a=INTEGER))]}, [[{}], [{"a": 1}], [{"a": "x"}]], [1]),
        ({"oneOf": [array(record(["a"], a=TEXT)), array(record(["a", "b"], a=TEXT, b=TEXT))]},
         [[{"a": "x"}], [{"a": "x", "b": "y"}]], [[{}]]),
        ({"oneOf": [{"type": "object", "additionalProperties": TEXT}, {"type": "object", "additionalProperties":
          COLORS}]}, [{"a": "red"}, {"a": "x"}, {}], [{"a": 1}]),
        # Types that the parts or the schema around them imply.
        ({"oneOf": [{"properties": {"a": INTEGER}}, {"properties": {"b": INTEGER}}]}, [{"a": 1}, {"b": 1}, {}], [1]),
        ({"oneOf": [TEXT, {"properties": {"a": INTEGER}, "required": ["a"]}]}, ["x", {"a": 1}], [1, {}]),
        ({"properties": {"a": INTEGER, "b": INTEGER}, "oneOf": NESTED}, [{"a": 1}, {"a": 1, "b": 2}], [{}, 1]),
        ({**PAIR, "oneOf": NESTED}, [{"a": 1}, {"a": 1, "b": 2}], [{}, 1]),
        ({**PAIR, "oneOf": [{"required": ["a"]}, {"properties": {"b": {}}}]}, [{"a": 1}, {"b": 2}], [1]),
        ({"allOf": [PAIR], "oneOf": NESTED}, [{"a": 1}, {"a": 1, "b": 2}], [{}, 1]),
        ({"allOf": [PAIR, {"oneOf": NESTED}]}, [{"a": 1}, {"a": 1, "b": 2}], [{}, 1]),
        ({"$ref": "#/$defs/p", "oneOf": NESTED, "$defs": {"p": PAIR}}, [{"a": 1}, {"a": 1, "b": 2}], [{}, 1]),
        ({**PAIR, "$ref": "#/$defs/n", "$defs": {"n": {"oneOf": NESTED}}}, [{"a": 1}, {"a": 1, "b": 2}], [{}, 1]),
        ({**PAIR, "if": {"required": ["a"]}, "then": {"oneOf": NESTED}}, [{}, {"a": 1}, {"a": 1, "b": 2}], [1]),
        ({**PAIR, "dependentSchemas": {"a": {"oneOf": NESTED}}}, [{}, {"a": 1}, {"a": 1, "b": 2}], [1]),
        # Bounds.
        ({"oneOf": [{**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 10}]}, ["a", "abcdefg"], [1]),
        ({"oneOf": [{**TEXT, "minLength": 1}, {**TEXT, "minLength": 3}]}, ["a", "abcd"], ["", 1]),
        ({"oneOf": [{**INTEGER, "minimum": 0}, {**INTEGER, "minimum": 5}]}, [1, 7], [-1]),
        ({"oneOf": [{**NUMBER, "minimum": 0, "exclusiveMinimum": True}, {**NUMBER, "minimum": 5}]}, [1.5, 7], [0]),
        ({"oneOf": [{**array(TEXT), "minItems": 1}, array(TEXT)]}, [[], ["a"]], [[1]]),
        ({"oneOf": [INTEGER, {"minimum": 0}]}, [1, -1, 1.5], [-1.5]),
        # Values of a type that two parts allow.
        ({"oneOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}]}, ["a", 1, None], [1.5]),
        ({"oneOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]}, ["a", 1, None], [1.5]),
    ],
)  # fmt: skip
def test_alternatives_are_allowed_and_named_unless_strict(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    lowered, places = lower(schema, strict=False)
    assert [place.rpartition("/")[2] for place in places] == ["oneOf"]
    grammar = grammar_of(json_schema=lowered)
    assert [value for value in matching if not accepts(grammar, value)] == []
    assert [value for value in failing if accepts(grammar, value)] == []


@pytest.mark.parametrize("strict", [True, False])
def test_an_integer_or_a_number_is_a_number_in_both_modes(strict: bool) -> None:
    for schema, place in (
        ({"oneOf": [INTEGER, NUMBER]}, "/oneOf"),
        ({"type": "object", "properties": {"v": {"oneOf": [NUMBER, INTEGER, TEXT]}}}, "/properties/v/oneOf"),
        ({"oneOf": [{"type": ["string", "integer"]}, NUMBER]}, "/oneOf"),
    ):
        lowered, places = lower(schema, strict=strict)
        assert places == (place,)
        for value in (1, 1.5, -3):
            assert accepts(grammar_of(json_schema=lowered), value if place == "/oneOf" else {"v": value})


@pytest.mark.parametrize("strict", [True, False])
def test_integers_or_numbers_in_arrays_and_objects_are_numbers_in_both_modes(strict: bool) -> None:
    for one, other, matching in (
        (array(INTEGER), array(NUMBER), [[1], [1.5], []]), (array(array(INTEGER)), array(array(NUMBER)), [[[1.5]]]),
        ({"$ref": "#/$defs/one"}, array(NUMBER), [[1], [1.5]]), (record(["v"], v=NUMBER), record(["v"], v=INTEGER),
         [{"v": 1}, {"v": 1.5}]), ({"type": "object", "additionalProperties": INTEGER}, {"type": "object",
          "additionalProperties": NUMBER}, [{"v": 1}, {"v": 1.5}]),
        ({"type": "array", "items": [INTEGER, TEXT], "additionalItems": False},
         {"type": "array", "items": [NUMBER, TEXT], "additionalItems": False}, [[1, "a"], [1.5, "a"]]),
    ):  # fmt: skip
        lowered, places = lower({"oneOf": [one, other], "$defs": {"one": array(INTEGER)}}, strict=strict)
        grammar = grammar_of(json_schema=lowered)
        assert places == ("/oneOf",) and [value for value in matching if not accepts(grammar, value)] == []


@for_each(
    ("schema", "matching", "failing"),
    [
        ({"oneOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}]}, ["x", 1, None], [1.5]),
        ({"oneOf": [{"anyOf": [record(["a"]), NULL]}, {"anyOf": [record(["b"]), NULL]}]},
         [{"a": 1}, {"b": 1}, None], [{"a": 1, "b": 1}, {}, 1]),
        ({"oneOf": [{"oneOf": [record(["a"]), NULL]}, {"oneOf": [record(["b"]), NULL]}]},
         [{"a": 1}, {"b": 1}, None], [{"a": 1, "b": 1}, {}, 1]),
        ({"oneOf": [{"type": ["object", "null"], "required": ["a"]}, {"type": ["object", "null"], "required": ["b"]}]},
         [{"a": 1}, {"b": 1}, None], [{"a": 1, "b": 1}, {}, 1]),
        ({"oneOf": [{"enum": ["a", None]}, {"enum": ["b", None]}]}, ["a", "b", None], ["c"]),
        ({"type": ["object", "null"], "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
         [{"a": 1}, {"b": 1}, None], [{"a": 1, "b": 1}, {}, 1]),
        ({"type": ["object", "string"], "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
         [{"a": 1}, {"b": 1}, "x"], [{"a": 1, "b": 1}, {}, 1]),
    ],
)  # fmt: skip
def test_values_of_a_type_that_several_parts_allow_entirely(
    schema: Any, matching: list[Any], failing: list[Any]
) -> None:
    """Without strict they are allowed, and the parts stay exclusive otherwise. JSON Schema forbids them."""
    lowered, places = lower(schema, strict=False)
    grammar = grammar_of(json_schema=lowered)
    assert places == ("/oneOf",)
    assert [value for value in matching if not accepts(grammar, value)] == []
    assert [value for value in failing if accepts(grammar, value)] == []
    strict, places = lower(schema, strict=True)
    grammar = grammar_of(json_schema=strict)
    assert places == () and [accepts(grammar, value) for value in matching] == [True, True, False]


@pytest.mark.parametrize("strict", [True, False])
def test_null_by_nullable_in_several_parts_is_allowed_in_both_modes(strict: bool) -> None:
    first, second = ({**record([name]), "nullable": True} for name in "ab")
    definitions = {"first": first, "second": second}
    for schema in (
        {"oneOf": [first, second]}, {"oneOf": [{"required": ["a"], "nullable": True}, second]},
        {"oneOf": [{"$ref": "#/$defs/first"}, {"$ref": "#/$defs/second"}]},
        {"oneOf": [{"allOf": [record(["a"])], "nullable": True}, {"$ref": "#/$defs/second"}]},
        {"oneOf": [first, second], "unevaluatedProperties": True}, {"allOf": [{"oneOf": [first, second]}]},
        {"oneOf": [first, second], "unevaluatedProperties": {"type": "integer"}},
    ):  # fmt: skip
        lowered, places = lower({**schema, "$defs": definitions}, strict=strict)
        grammar = grammar_of(json_schema=lowered)
        assert [place.rpartition("/")[2] for place in places] == ["oneOf"]
        assert [accepts(grammar, value) for value in (None, {"a": 1}, {"b": 1})] == [True] * 3
        assert not any(accepts(grammar, value) for value in ({"a": 1, "b": 1}, {}, 1))
    lowered, places = lower({"type": "object", "oneOf": [first, second]}, strict=strict)
    assert places == () and not accepts(grammar_of(json_schema=lowered), None)


@pytest.mark.parametrize("strict", [True, False])
def test_parts_that_a_grammar_can_tell_apart_stay_exclusive(strict: bool) -> None:
    for schema, matching, failing in (
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, {"a": 1, "b": 1}),
        ({"oneOf": [{**TEXT, "minLength": 2}, {**TEXT, "maxLength": 3}]}, "a", "ab"),
        ({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, "a", "b"),
        ({"oneOf": [record(["k"], k={"const": "a"}), record(["k"], k={"const": "b"})]}, {"k": "b"}, {"k": "c"}),
        ({"oneOf": [array(TEXT), array(INTEGER)]}, [1], []),
        ({"properties": {"a": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, {"a": 1, "b": 1}),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, {"a": 1, "b": 1}),
        ({"oneOf": [{**NUMBER, "maximum": 3}, {**NUMBER, "minimum": 2}]}, 4, 2.5),
    ):
        lowered, places = lower(schema, strict=strict)
        assert places == ()
        check(lowered, [matching], [failing])


def test_recursive_arrays_are_compared_to_a_depth() -> None:
    definitions = {
        name: {"type": "array", "minItems": least, "maxItems": 4, "items": {"$ref": f"#/$defs/{name}"}}
        for name, least in (("A", 1), ("B", 2))
    }  # fmt: skip
    schema = {"$defs": definitions, "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}
    with contextlib.suppress(ValueError):  # no value ends
        lower(schema, strict=False)


def test_a_condition_is_exact() -> None:
    """A value that two parts of a oneOf match fails the condition, whatever the mode is."""
    schema = {"not": {"not": {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 1, 3]}]}}}
    lowered, places = lower(schema, strict=False)
    grammar = grammar_of(json_schema=lowered)
    assert places == () and accepts(grammar, 3) and not accepts(grammar, 1)


def test_strict_parts_that_leave_no_value_are_rejected() -> None:
    for one, other in (
        (TEXT, TEXT), ({"$ref": "#/$defs/text"}, TEXT), (array(TEXT), array(TEXT)),
        ({**TEXT, "minLength": 0}, TEXT), ({"required": ["a"]}, {"type": "object", "required": ["a"]}),
    ):  # fmt: skip
        message = rejection({"oneOf": [one, other], "$defs": {"text": TEXT}})
        assert message == "/oneOf allows no value, because each part is contained in another one; use anyOf"


@for_each(
    ("schema", "matching", "failing"),
    [
        ({"oneOf": [array(TEXT), array(COLORS)]}, [["x"], ["red", "x"]], [[], ["red"]]),
        ({"oneOf": [array(TEXT), array({"type": "object"})]}, [["x"], [{}]], [[]]),
        ({"oneOf": [{"properties": {"a": INTEGER}}, {"properties": {"b": INTEGER}}]}, [{"a": 1, "b": "x"}], [{"a": 1}]),
        ({**PAIR, "oneOf": NESTED}, [{"a": 1}], [{"a": 1, "b": 2}]),
        ({"oneOf": [TEXT, {"required": ["a"]}]}, [{"a": 1}], ["x"]),
        ({"oneOf": [{**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 10}]}, ["abcdefg"], ["a"]),
        ({"oneOf": [{**INTEGER, "minimum": 0}, {**INTEGER, "minimum": 5}]}, [1], [7]),
        ({"oneOf": [array({**INTEGER, "minimum": 0}), array({**INTEGER})]}, [[-1]], [[1], []]),
        # Null by nullable of a conjunct.
        ({"oneOf": [{"type": ["string", "null"], "allOf": [{"enum": ["a"], "nullable": True}]}, {"enum": ["a"]}]},
         [], ["a"]), ({"oneOf": [{"allOf": [{"not": INTEGER, "nullable": True}], "type": ["string", "null"]}, TEXT]},
         [], ["a", 1]),
        # An array matches both parts of the inner oneOf, and so not the closed object.
        ({"oneOf": [array(INTEGER), {"properties": {}, "additionalProperties": False,
                                     "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}]},
         [[], [1]], [["x"], {}, {"a": 1}]),
    ],
)  # fmt: skip
def test_strict_parts_stay_exclusive(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    lowered, places = lower(schema, strict=True)
    assert places == ()
    if "nullable" in str(schema):  # which is an annotation in JSON Schema, so that the validator does not know it
        grammar = grammar_of(json_schema=lowered)
        assert [accepts(grammar, value) for value in (None, *failing)] == [True, *([False] * len(failing))]
    else:
        check(schema, matching, failing)
