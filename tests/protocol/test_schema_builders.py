"""object_schema, with_optional, array_schema, nullable: members that are required, optional, null or unknown."""

from jsonschema import Draft202012Validator

from chairlift.protocol import schema_builders
from chairlift.protocol.response_schemas import COUNT, TEXT
from chairlift.protocol.schema_builders import array_schema, nullable, object_schema, with_optional


def accepts(schema: schema_builders.Schema, value: object) -> bool:
    return Draft202012Validator(schema).is_valid(value)


def test_a_shape_has_what_it_names_and_may_have_more() -> None:
    schema = with_optional(object_schema(a=COUNT, b=nullable(TEXT)), c=array_schema(TEXT, 1))
    for valid in ({"a": 1, "b": None}, {"a": 1, "b": "x", "c": ["y"]}, {"a": 0, "b": "", "d": 5}):
        assert accepts(schema, valid)
    for invalid in ({"a": 1}, {"b": "x"}, {"a": -1, "b": "x"}, {"a": 1, "b": 5}, {"a": 1, "b": "x", "c": []}, []):
        assert not accepts(schema, invalid)
