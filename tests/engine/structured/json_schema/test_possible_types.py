"""PossibleTypes: the types of the values of a schema, and the schemas that all of its values match."""

from dataclasses import replace
from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.document import SchemaDocument
from chairlift.engine.structured.json_schema.implied_types import ImpliedTypes
from chairlift.engine.structured.json_schema.possible_types import PossibleTypes
from support_shares import for_each

ALL = "null boolean number string array object"
TEXT, NULL, NEEDS_A = {"type": "string"}, {"type": "null"}, {"required": ["a"]}
DEFINITIONS = {"a": NEEDS_A, "text": TEXT, "loop": {"allOf": [{"$ref": "#/$defs/loop"}, TEXT]}}


def types_and_document(schema: Any) -> tuple[PossibleTypes, SchemaDocument]:
    document = SchemaDocument({"anyOf": [schema], "$defs": DEFINITIONS}, LoweringBudget())
    return PossibleTypes(document, ImpliedTypes(document)), document


@for_each(
    ("schema", "expected"),
    [
        (TEXT, "string"), ({"type": ["integer", "null"]}, "integer null"), ({}, ALL), (True, ALL), (False, ""),
        (NEEDS_A, "object"), ({"const": 1}, "integer"), ({"const": 1.5}, "number"), ({"enum": ["a", None]},
         "string null"),
        ({"enum": ["a", True], "type": "boolean"}, "boolean"), ({**TEXT, "nullable": True}, "string null"),
        ({"$ref": "#/$defs/a"}, "object"), ({"$ref": "#/$defs/a", "nullable": True}, "object null"),
        ({"$ref": "#/$defs/loop"}, "string"), ({"$ref": "http://a.invalid/b"}, ALL),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "object"]}]}, "null"),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "integer"),
        ({"anyOf": [NEEDS_A, NULL]}, "object null"), ({"oneOf": [TEXT, {"$ref": "#/$defs/a"}]}, "string object"),
        ({"type": ["string", "object"], "anyOf": [NEEDS_A, NULL]}, "string object"),
        ({"not": NULL}, ALL),
        # Null by `nullable` of a conjunct needs to match none of those inside it.
        ({"type": ["string", "null"], "allOf": [{"allOf": [TEXT], "nullable": True}]}, "string null"),
        ({"allOf": [{"$ref": "#/$defs/text", "nullable": True}, {"type": ["string", "null"]}]}, "string null"),
        ({"type": ["string", "null"], "allOf": [{"allOf": [TEXT]}]}, "string"),
    ],
)  # fmt: skip
def test_types_of_the_values(schema: Any, expected: str) -> None:
    types, document = types_and_document(schema)
    assert types.of(document.root.child("anyOf", 0)) == frozenset(expected.split())


def test_types_are_limited_by_those_of_the_value() -> None:
    types, document = types_and_document({"anyOf": [NEEDS_A, NULL, {"type": "number"}]})
    node = document.root.child("anyOf", 0)
    limited = replace(node, value_types=frozenset({"null", "integer", "string"}))
    assert types.of(limited) == {"null", "integer", "string"} and types.of(node) == {"null", "object", "number"}


@for_each(
    ("schema", "limit", "expected"),
    [
        (TEXT, "string", ["/anyOf/0"]), ({"$ref": "#/$defs/a"}, "object", ["/anyOf/0", "/$defs/a"]),
        ({"allOf": [NEEDS_A, True]}, "object", ["/anyOf/0", "/anyOf/0/allOf/0"]),
        ({"anyOf": [{"type": "object"}, NULL]}, "object", ["/anyOf/0", "/anyOf/0/anyOf/0"]),
        ({"anyOf": [{"type": "object"}, NULL]}, "object null", ["/anyOf/0"]),
        ({"oneOf": [TEXT, NULL]}, "null", ["/anyOf/0", "/anyOf/0/oneOf/1"]),
        ({"$ref": "#/$defs/text", "nullable": True}, "string null", ["/anyOf/0"]),
        ({"$ref": "#/$defs/text", "nullable": True}, "string", ["/anyOf/0", "/$defs/text"]),
    ],
)  # fmt: skip
def test_schemas_that_all_values_match(schema: Any, limit: str, expected: list[str]) -> None:
    types, document = types_and_document(schema)
    node = replace(document.root.child("anyOf", 0), value_types=frozenset(limit.split()))
    assert [each.pointer for each in types.conjuncts(node)] == expected


def test_a_long_chain_of_references_has_any_type() -> None:
    chain = {str(number): {"$ref": f"#/$defs/{number + 1}"} for number in range(3000)}
    document = SchemaDocument({"$ref": "#/$defs/0", "$defs": {**chain, "3000": TEXT}}, LoweringBudget())
    assert PossibleTypes(document, ImpliedTypes(document)).of(document.root) == frozenset(ALL.split())


@for_each(
    ("schema", "expected"),
    [
        ({"properties": {"k": {"const": "a"}, "n": {"enum": [1, 2.0]}, "t": TEXT}, "required": ["k", "n", "t"]},
         {"k": ['"a"'], "n": ["1", "2"]}),
        ({"properties": {"k": {"const": "a"}}}, {}), ({"required": ["k"]}, {}), (TEXT, {}),
        ({"allOf": [{"required": ["k"]}, {"properties": {"k": {"enum": ["a"], "nullable": True}}}]},
         {"k": ['"a"', "null"]}),
        ({"type": ["object", "null"], "properties": {"k": {"const": 1}}, "required": ["k"], "nullable": True},
         {"k": ["1"]}),
        ({"properties": {"k": {"enum": list(range(65))}}, "required": ["k"]}, {}),
        ({"properties": {f"p{at}": {"const": at} for at in range(9)}, "required": [f"p{at}" for at in range(9)]},
         {f"p{at}": [str(at)] for at in range(8)}),
    ],
)  # fmt: skip
def test_required_properties_with_few_values(schema: Any, expected: dict[str, list[str]]) -> None:
    types, document = types_and_document(schema)
    tags = types.tags(document.root.child("anyOf", 0))
    assert {name: sorted(values) for name, values in tags.items()} == expected
