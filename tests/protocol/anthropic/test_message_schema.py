"""The schemas of /v1/messages are valid, and demand what clients read."""

import jsonschema
import pytest

from chairlift.protocol.anthropic.message_schema import ERROR, MESSAGE, TOKEN_COUNT
from chairlift.protocol.anthropic.message_writer import MessageWriter
from chairlift.protocol.error_formats import format_error


@pytest.mark.parametrize("schema", [MESSAGE, TOKEN_COUNT, ERROR])
def test_a_schema_is_valid_and_rejects_what_is_missing(schema: dict[str, object]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not jsonschema.Draft202012Validator(schema).is_valid({})


def test_what_is_sent_is_valid() -> None:
    choice = {"message": {"content": "a", "reasoning_content": "b"}, "finish_reason": "stop"}
    message = MessageWriter("msg_1", "m", ()).whole({"choices": [choice]})
    assert jsonschema.Draft202012Validator(MESSAGE).is_valid(message)
    error = format_error("/v1/messages", {"message": "x"}, 404, "r")
    assert jsonschema.Draft202012Validator(ERROR).is_valid(error)
