"""response_schemas.py: the schemas are valid, require their fields, and reject other values."""

from jsonschema import Draft202012Validator

from chairlift.protocol import response_schemas
from chairlift.protocol.response_schemas import COUNT, TEXT, array_schema, nullable, object_schema, with_optional


def accepts(schema: response_schemas.Schema, value: object) -> bool:
    return Draft202012Validator(schema).is_valid(value)


def test_every_schema_is_one() -> None:
    names = {name for name in dir(response_schemas) if name.isupper()} - {"NAMED_TOKENS"}
    result = [getattr(response_schemas, name) for name in sorted(names)]
    assert len(result) > 15
    for schema in result:
        Draft202012Validator.check_schema(schema)


def test_a_shape_has_what_it_names_and_may_have_more() -> None:
    schema = with_optional(object_schema(a=COUNT, b=nullable(TEXT)), c=array_schema(TEXT, 1))
    for valid in ({"a": 1, "b": None}, {"a": 1, "b": "x", "c": ["y"]}, {"a": 0, "b": "", "d": 5}):
        assert accepts(schema, valid)
    for invalid in ({"a": 1}, {"b": "x"}, {"a": -1, "b": "x"}, {"a": 1, "b": 5}, {"a": 1, "b": "x", "c": []}, []):
        assert not accepts(schema, invalid)


def test_an_error_has_all_four_words() -> None:
    error = {"message": "m", "type": "t", "param": None, "code": "c"}
    assert accepts(response_schemas.ERROR, {"error": error})
    for name in error:
        assert not accepts(response_schemas.ERROR, {"error": {key: error[key] for key in error if key != name}})
