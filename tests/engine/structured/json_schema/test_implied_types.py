"""ImpliedTypes: a schema without a type has the types that its keywords are about, unless another one says them."""

from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.document import Node, SchemaDocument
from chairlift.engine.structured.json_schema.implied_types import INNER_KEYWORDS, ImpliedTypes
from support_grammars import grammar_of
from support_json_schema import accepts, check
from support_shares import for_each

FLAG = {"properties": {"a": {"type": "boolean"}}, "required": ["a"]}
NEEDS_A, NEEDS_B = {"required": ["a"]}, {"required": ["b"]}
REFERENCED = {
    "a": {"$dynamicAnchor": "d", **NEEDS_A}, "b": NEEDS_B, "low": {"minimum": 1}, "text": {"minLength": 1},
    "all": {"allOf": [{"$ref": "#/$defs/text"}]},
}  # fmt: skip


@for_each(
    ("schema", "implied"),
    [
        (FLAG, "object"), (NEEDS_A, "object"), ({"additionalProperties": False}, "object"),
        ({"patternProperties": {}}, "object"), ({"minProperties": 1}, "object"), ({"propertyNames": {}}, "object"),
        ({"dependentRequired": {}}, "object"), ({"items": {}}, "array"), ({"prefixItems": []}, "array"),
        ({"minItems": 1}, "array"), ({"uniqueItems": True}, "array"), ({"contains": {}}, "array"),
        ({"pattern": "a"}, "string"), ({"minLength": 1}, "string"), ({"format": "date"}, "string"),
        ({"format": "int32"}, None), ({"minimum": 1}, "number"), ({"multipleOf": 2}, "number"),
        ({"minLength": 1, "maximum": 3}, ["number", "string"]), ({"allOf": [NEEDS_A, {"allOf": [NEEDS_B]}]}, "object"),
        ({"allOf": [FLAG, {"items": {}}]}, ["array", "object"]), ({"if": {"type": "string"}, "then": FLAG}, None),
        ({}, None), ({"title": "t", "$defs": {"x": FLAG}}, None), ({"not": FLAG}, None), ({"enum": [1, {}]}, None),
        ({"const": 1, "minLength": 1}, None), ({"minimum": 1, "anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ({"minimum": 1, "oneOf": [{}, {"const": "auto"}]}, None), ({**FLAG, "anyOf": [NEEDS_A, NEEDS_B]}, "object"),
        ({"minimum": 1, "$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}}, None),
        ({"minimum": 1, "$ref": "#/$defs/x", "$defs": {"x": {}}}, "number"),
        ({**NEEDS_A, "$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}]}}}, "object"),
        ({"minLength": 1, "$ref": "#/$defs/x", "$defs": {"x": {"minimum": 1}}}, ["number", "string"]),
        ({"$ref": "#/$defs/x", "$defs": {"x": FLAG}}, None), ({"allOf": [{**FLAG, "nullable": True}]},
         ["null", "object"]),
        ({"allOf": [{**FLAG, "nullable": True}, NEEDS_B]}, "object"),
        ({**NEEDS_B, "allOf": [{**FLAG, "nullable": True}]}, "object"),
        ({"minimum": 1, "$ref": "http://a.invalid/b"}, "number"), ({"minimum": 1, "then": {"type": "null"}}, "number"),
    ],
)  # fmt: skip
def test_the_type_that_keywords_are_about(schema: Any, implied: Any) -> None:
    node = SchemaDocument(schema, LoweringBudget()).root
    assert ImpliedTypes(SchemaDocument(schema, LoweringBudget())).add_to(node).schema.get("type") == implied


def test_a_schema_has_its_own_type_and_its_place() -> None:
    schema = {"type": ["object", "null"], **FLAG}
    document = SchemaDocument({"items": schema}, LoweringBudget())
    node = document.root.child("items")
    types = frozenset({"object", "null"})
    assert node == Node(schema, "/items", "")
    assert ImpliedTypes(document).add_to(node) == Node(schema, "/items", "", None, types, INNER_KEYWORDS)
    assert ImpliedTypes(document).add_to(document.root).child("items") == node  # another value


def test_the_search_for_a_type_ends_in_long_chains_and_wide_alternatives() -> None:
    chain = {str(number): {"minimum": 0, "$ref": f"#/$defs/{number + 1}"} for number in range(3000)}
    for schema in (
        {"minimum": 1, "$ref": "#/$defs/0", "$defs": {**chain, "3000": {"type": "integer"}}},
        {"minimum": 1, "anyOf": [{"maximum": 5}] * 3000},
    ):
        document = SchemaDocument(schema, LoweringBudget())
        assert ImpliedTypes(document).add_to(document.root).schema == schema


@for_each(
    ("schema", "matching", "failing", "lost"),
    [
        (FLAG, [{"a": True}], [{}, {"a": 1}], [5, "a", None]),
        ({"type": "object", "properties": {"x": FLAG, "y": {"items": {"minimum": 1}}}},
         [{"x": {"a": True}}, {"y": [1]}], [{"y": [0]}], [{"x": 1}, {"y": "a"}, {"y": ["a"]}]),
        ({"items": {"pattern": "^a"}}, [["a"]], [["b"]], [1, [1]]),
        ({"anyOf": [NEEDS_A, {"type": "null"}]}, [{"a": 1}, None], [{}], [1]),
        ({"$ref": "#/$defs/x", "$defs": {"x": FLAG}}, [{"a": True}], [{}], [1]),
        ({**FLAG, "anyOf": [NEEDS_B, {"properties": {"c": {}}}]}, [{"a": True, "b": 1}], [{}], [1]),
        # A type that is said for the same value is not narrowed by a neighbour.
        ({"type": ["object", "null"], "anyOf": [NEEDS_A, NEEDS_B]}, [{"a": 1}, None], [{}, 1], []),
        ({"type": ["string", "null"], "allOf": [{"pattern": "^a"}]}, ["a", None], ["b"], []),
        ({"allOf": [{"type": ["object", "null"]}, NEEDS_A]}, [{"a": 1}, None], [{}], []),
        ({"anyOf": [{"type": "null"}, {"type": "string"}], "allOf": [True, {"maxLength": 1}]}, [None, "a"], ["ab"], []),
        ({"type": ["string", "integer"], "anyOf": [{"minLength": 2}, {"minimum": 3}]}, ["ab", "a", 1], [None], []),
        ({"minimum": 1, "anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], [0], []),
        # So is one of a reference, which has its own implied type elsewhere.
        ({"type": ["object", "null"], "$ref": "#/$defs/a", "$defs": REFERENCED}, [{"a": 1}, None], [{}, 1], []),
        ({"type": ["string", "object"], "$ref": "#/$defs/a", "$defs": REFERENCED}, [{"a": 1}, "x"], [{}, 1], []),
        ({"type": ["integer", "null"], "$ref": "#/$defs/low", "$defs": REFERENCED}, [1, None], [0, "x"], []),
        ({"type": ["string", "null"], "allOf": [{"$ref": "#/$defs/a"}], "$defs": REFERENCED}, ["x", None], [1], []),
        ({"type": ["string", "null"], "$ref": "#/$defs/all", "$defs": REFERENCED}, ["x", None], ["", 1], []),
        ({"allOf": [{"type": ["string", "null"]}, {"$ref": "#/$defs/text"}], "$defs": REFERENCED}, ["x", None], [""],
         []),
        ({"anyOf": [{"type": "null"}, {"type": "string"}], "$ref": "#/$defs/text", "$defs": REFERENCED}, ["x", None],
         [""], []),
        ({"enum": [None, "x", ""], "$ref": "#/$defs/text", "$defs": REFERENCED}, ["x", None], [""], []),
        ({"maxLength": 2, "$ref": "#/$defs/low", "$defs": REFERENCED}, ["ab", 1], ["abc", 0], [None]),
        ({"type": ["object", "null"], "dependentSchemas": {"a": {"$ref": "#/$defs/b"}}, "$defs": REFERENCED},
         [None, {}, {"a": 1, "b": 1}], [{"a": 1}, 1], []),
        ({"type": ["object", "null"], "dependencies": {"a": {"$ref": "#/definitions/b"}}, "definitions": REFERENCED},
         [None, {}, {"a": 1, "b": 1}], [1], []),
        ({"type": ["object", "null"], "$dynamicRef": "#d", "$defs": REFERENCED}, [{"a": 1}, None], [{}, 1], []),
        ({"required": ["p", "q"], "$defs": REFERENCED, "properties":
          {"p": {"type": "null", "$ref": "#/$defs/low"}, "q": {"$ref": "#/$defs/low"}}},
         [{"p": None, "q": 1}], [{"p": 1, "q": 1}, {"p": None, "q": 0}], [{"p": None, "q": "x"}]),
        ({"required": ["x", "y"], "properties": {
            "x": {"$ref": "#/properties/y/allOf/0"}, "y": {"type": ["string", "null"], "allOf": [{"minLength": 1}]}}},
         [{"x": "a", "y": None}], [{"x": "", "y": None}], [{"x": None, "y": None}]),
        ({"required": ["y", "x"], "properties": {
            "y": {"type": ["string", "null"], "allOf": [{"minLength": 1}]}, "x": {"$ref": "#/properties/y/allOf/0"}}},
         [{"y": None, "x": "a"}], [{"y": None, "x": ""}], [{"y": None, "x": None}]),
        ({"type": ["object", "null"], "allOf": [{"$ref": "#/$defs/a"}], "unevaluatedProperties": {"type": "integer"},
          "$defs": REFERENCED}, [None, {"a": 1}], [{}, {"a": 1, "z": "x"}], []),
        ({"allOf": [{**NEEDS_A, "anyOf": [{"type": "null"}, {"type": "object"}]}], "properties": {"a": {}},
          "unevaluatedProperties": False}, [{"a": 1}, None], [{}, {"a": 1, "z": 1}], []),
        # Conditions keep their meaning.
        ({"type": ["object", "string"], "if": NEEDS_A, "then": NEEDS_B}, ["x"], [{"a": 1}, 1], []),
        ({"type": ["object", "string"], "if": {"$ref": "#/$defs/a"}, "then": NEEDS_B, "$defs": REFERENCED},
         ["x", {}], [{"a": 1}, 1], []),
        ({"type": ["object", "null"], "not": {"not": NEEDS_A}}, [None, {"a": 1}], [{}], []),
        ({"not": NEEDS_A}, [{}], [{"a": 1}, 1], []), ({"enum": ["a", 1], "minLength": 1}, ["a", 1], [""], []),
        ({"type": ["object", "string"], "if": NEEDS_A, "then": NEEDS_B}, [{}, {"a": 1, "b": 2}], [{"a": 1}], []),
    ],
)  # fmt: skip
def test_outputs_have_the_type_that_is_meant(
    schema: Any, matching: list[Any], failing: list[Any], lost: list[Any]
) -> None:  # fmt: skip
    check(schema, matching, failing, lost)


@for_each(
    ("schema", "matching", "failing"),
    [
        ({"allOf": [{"$ref": "#/$defs/a", "nullable": True}]}, [None, {"a": 1}], [{}, 1]),
        ({"allOf": [{"$ref": "#/$defs/a", "nullable": True}], "unevaluatedProperties": False, "properties":
          {"a": {}}}, [], [{}, 1]),
        ({"allOf": [{"$ref": "#/$defs/a", "nullable": True}], "unevaluatedProperties": {"type": "integer"}},
         [None, {"a": 1}], [{}, 1, {"a": "x"}]),
        ({"$ref": "#/$defs/a", "nullable": True}, [None, {"a": 1}], [{}, 1]),
        ({"$ref": "#/$defs/b"}, [None, {"a": 1}], [{}, 1]), ({"allOf": [{"$ref": "#/$defs/b"}]}, [None], [{}, 1]),
        ({"type": "object", "$ref": "#/$defs/b"}, [{"a": 1}], [None, {}]),
        ({"type": ["object", "null"], "allOf": [{"$ref": "#/$defs/b"}]}, [{"a": 1}, None], [{}]),
        ({"type": ["object", "null"], "allOf": [{"$ref": "#/$defs/a"}]}, [{"a": 1}, None], [{}]),
    ],
)  # fmt: skip
def test_nullable_beside_an_implied_type(schema: Any, matching: list[Any], failing: list[Any]) -> None:
    grammar = grammar_of(
        json_schema={**schema, "$defs": {"a": NEEDS_A, "b": {"anyOf": [{"$ref": "#/$defs/a"}], "nullable": True}}}
    )
    assert [value for value in matching if not accepts(grammar, value)] == []
    assert [value for value in failing if accepts(grammar, value)] == []
