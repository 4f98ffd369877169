"""The schemas of /v1/responses are valid, and demand what clients read."""

import jsonschema
import pytest

from chairlift.protocol.responses.response_schema import DELETED, INPUT_ITEMS, RESPONSE


@pytest.mark.parametrize("schema", [RESPONSE, DELETED, INPUT_ITEMS])
def test_a_schema_is_valid_and_rejects_what_is_missing(schema: dict[str, object]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not jsonschema.Draft202012Validator(schema).is_valid({})
