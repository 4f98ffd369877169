"""Values: their types and finite sets."""

from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.document import SchemaDocument
from chairlift.engine.structured.json_schema.value_sets import finite_values, has_type, share_no_value, type_of
from support_shares import for_each


def test_types_of_json_values() -> None:
    assert [type_of(value) for value in (None, True, 1, 1.5, "", [], {})] == [
        "null", "boolean", "number", "number", "string", "array", "object",
    ]  # fmt: skip
    assert has_type(2.0, ["integer"]) and not has_type(2.5, ["integer"]) and not has_type(True, ["integer", "number"])


@for_each(
    ("schema", "values"),
    [
        ({"enum": [1, 1.0, "a"]}, [1.0, "a"]), ({"const": None}, [None]), ({"type": "boolean"}, [False, True]),
        ({"type": ["boolean", "null"], "title": "x"}, [None, False, True]),
         ({"enum": [1, "a"], "type": "string"}, ["a"]),
        ({"const": 1, "enum": [2]}, []), ({"$ref": "#/$defs/c"}, ["c"]), (False, []), (True, None), ({}, None),
        ({"type": "string"}, None), ({"enum": ["a"], "minLength": 1}, None), ({"$ref": "#/$defs/loop"}, None),
    ],
)  # fmt: skip
def test_finite_values(schema: Any, values: list[Any] | None) -> None:
    document = SchemaDocument(
        {"not": schema, "$defs": {"c": {"const": "c"}, "loop": {"$ref": "#/$defs/loop"}}}, LoweringBudget()
    )
    found = finite_values(document, document.root.child("not"))
    assert (found if found is None else list(found.values())) == values


def test_sets_without_a_common_value() -> None:
    assert share_no_value([{"1": 1}, {"2": 2}]) and not share_no_value([{"1": 1}, {"1": 1.0}])
    assert not share_no_value([{"1": 1}, None]) and share_no_value([{}, {}])
