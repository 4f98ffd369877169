"""read_metadata: the schema and the reader accept and reject the same values."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.metadata import METADATA_SCHEMA, read_metadata


@pytest.mark.parametrize("value", [{}, {"a": "b"}, {"k" * 64: "v" * 512}, {str(number): "" for number in range(16)}])
def test_good_values(value: Any) -> None:
    assert read_metadata(value) == value and Draft202012Validator(METADATA_SCHEMA).is_valid(value)
    assert read_metadata(None) == {}


@pytest.mark.parametrize(
    "value",
    [[], "a", 5, {"a": 1}, {"a": None}, {"k" * 65: ""}, {"a": "v" * 513}, {str(number): "" for number in range(17)}],
)
def test_bad_values(value: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_metadata(value)
    assert error.value.details["param"] == "metadata"
    assert not Draft202012Validator(METADATA_SCHEMA).is_valid(value)
