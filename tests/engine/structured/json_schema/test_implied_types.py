"""ImpliedTypes: a schema without a type has the types that its keywords are about, unless another one says them."""

from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.document import Node, SchemaDocument
from chairlift.engine.structured.json_schema.implied_types import ImpliedTypes
from support_json_schema import check
from support_shares import for_each

FLAG = {"properties": {"a": {"type": "boolean"}}, "required": ["a"]}
NEEDS_A, NEEDS_B = {"required": ["a"]}, {"required": ["b"]}


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
    assert ImpliedTypes(document).add_to(node) == node == Node(schema, "/items", "")


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
        # Conditions keep their meaning.
        ({"not": NEEDS_A}, [{}], [{"a": 1}, 1], []), ({"enum": ["a", 1], "minLength": 1}, ["a", 1], [""], []),
        ({"type": ["object", "string"], "if": NEEDS_A, "then": NEEDS_B}, [{}, {"a": 1, "b": 2}], [{"a": 1}], []),
    ],
)  # fmt: skip
def test_outputs_have_the_type_that_is_meant(
    schema: Any, matching: list[Any], failing: list[Any], lost: list[Any]
) -> None:  # fmt: skip
    check(schema, matching, failing, lost)
