"""UnsupportedSchemaError has the place; short_reason keeps the beginning and the end of a message."""

from chairlift.engine.structured.json_schema.errors import MAX_REASON_CHARS, UnsupportedSchemaError, short_reason


def test_a_message_begins_with_the_place() -> None:
    error = UnsupportedSchemaError("/a/not", "cannot be enforced")
    assert str(error) == "/a/not cannot be enforced" and error.place == "/a/not"
    assert str(UnsupportedSchemaError("", "cannot be enforced")) == "/ cannot be enforced"


def test_only_the_middle_of_a_long_message_is_left_out() -> None:
    assert short_reason(ValueError("x" * MAX_REASON_CHARS)) == "x" * MAX_REASON_CHARS
    reason = short_reason(UnsupportedSchemaError(f"/properties/{'x' * 5000}/not", "cannot be enforced"))
    assert reason.startswith("/properties/x") and reason.endswith("x/not cannot be enforced") and " ... " in reason
    assert len(reason) == MAX_REASON_CHARS + 5
