"""read_batch_request: the documented schema and the reader accept and reject the same bodies."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.batches.batch_fields import BATCH_FIELDS, read_batch_request
from chairlift.protocol.openapi import body_schema
from support_shares import for_each

BODY = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}
SCHEMA = Draft202012Validator(body_schema(BATCH_FIELDS, ()))


def read(**fields: Any) -> Any:
    return read_batch_request(BODY | fields)


@pytest.mark.parametrize(("window", "hours"), [("24h", 24), ("1h", 1), ("9h", 9), ("99h", 99), ("168h", 168)])
def test_windows(window: str, hours: int) -> None:
    request = read(completion_window=window, metadata={"a": "b"}, output_expires_after={}, x=1)
    assert (request.window_seconds, request.completion_window) == (3600 * hours, window)
    assert request.metadata == {"a": "b"} and request.ignored == ("output_expires_after", "x")
    assert SCHEMA.is_valid(BODY | {"completion_window": window})


@for_each(
    ("name", "value"),
    [
        *(("completion_window", value) for value in ("", "h", "0h", "169h", "999h", "1000h", "024h", "24", "24m",
                                                     "1.5h", "-1h", " 24h", "２h", 24, None, [], {})),
        *(("input_file_id", value) for value in ("", "x" * 129, 5, None, [])),
        *(("endpoint", value) for value in (5, None, [], {})),
        *(("metadata", value) for value in ([], {"a": 1})),
    ],
)  # fmt: skip
def test_bad_values(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        read(**{name: value})
    assert error.value.details["param"] == name and len(error.value.message) < 300
    assert not SCHEMA.is_valid(BODY | {name: value})


def test_the_endpoint_is_one_of_the_routes() -> None:
    with pytest.raises(InvalidRequest, match=r"endpoint must be one of /v1/chat/completions, .*, got '/admin/drain'"):
        read(endpoint="/admin/drain")
    for name in BODY:
        with pytest.raises(InvalidRequest, match=f"{name} is missing"):
            read_batch_request({each: value for each, value in BODY.items() if each != name})
