"""response_schemas.py: the schemas are valid, require their fields, and reject other values."""

from jsonschema import Draft202012Validator

from chairlift.protocol import response_schemas, schema_builders


def accepts(schema: schema_builders.Schema, value: object) -> bool:
    return Draft202012Validator(schema).is_valid(value)


def test_every_schema_is_one() -> None:
    names = {name for name in dir(response_schemas) if name.isupper()} - {"NAMED_TOKENS"}
    result = [getattr(response_schemas, name) for name in sorted(names)]
    assert len(result) > 15
    for schema in result:
        Draft202012Validator.check_schema(schema)


def test_an_error_has_all_four_words() -> None:
    error = {"message": "m", "type": "t", "param": None, "code": "c"}
    assert accepts(response_schemas.ERROR, {"error": error})
    for name in error:
        assert not accepts(response_schemas.ERROR, {"error": {key: error[key] for key in error if key != name}})
