"""split_fields: which fields are used, ignored, refused or missing."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.field_check import (
    SHOWN_ID_CHARS,
    call_arguments,
    format_short,
    shown_id,
    split_fields,
    string_member,
)
from chairlift.protocol.request_fields import CHAT, Effect, Field
from support_shares import for_each

TABLE = {
    "model": Field({"type": "string"}),
    "needed": Field({}, required=True),
    "used": Field({}),
    "quiet": Field({}, "", Effect.IGNORED),
    "never": Field({}, "do without", Effect.REFUSED, neutral=(False, 1)),
}


def test_fields_are_sorted_by_their_effect() -> None:
    body = {"model": "m", "needed": 1, "used": None, "quiet": 1, "unknown": None, "never": False}
    fields, ignored = split_fields(body, TABLE)
    assert fields == {"model": "m", "needed": 1} and ignored == ("quiet", "unknown")


@pytest.mark.parametrize(("body", "message"), [
    ({"model": "m", "never": True}, "never is not supported: do without"),
    ({"model": "m", "never": 1.0}, "never is not supported: do without"),
    ({}, "needed is missing"),
    ({"needed": None}, "needed is missing"),
    ({"needed": 1, "model": 7}, "model must be a string, got int"),
])  # fmt: skip
def test_what_is_wrong_is_named(body: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        split_fields(body, TABLE)


@pytest.mark.parametrize("model", [None, ""])
def test_an_empty_model_is_as_absent(model: str | None) -> None:
    assert split_fields({"model": model, "needed": ""}, TABLE)[0] == {"needed": ""}


def test_a_number_without_a_fraction_is_an_integer_where_the_field_is_one() -> None:
    table = {"count": Field({"type": "integer"}), "factor": Field({"type": "number"})}
    fields, _ = split_fields({"count": 3.0, "factor": 3.0}, table)
    assert fields == {"count": 3, "factor": 3.0} and [type(each) for each in fields.values()] == [int, float]
    for value in (1.5, "3", True, [3.0], float("inf"), -(2.0**63), 2.0**64):
        assert split_fields({"count": value}, table)[0] == {"count": value}


def test_options_of_a_stream_without_a_stream_have_no_effect() -> None:
    body = {"model": "m", "messages": [], "stream_options": {"include_usage": True, "more": 1}}
    assert split_fields(body, CHAT)[1] == ("stream_options",)
    assert split_fields({**body, "stream": True}, CHAT)[1] == ("stream_options.more",)
    with pytest.raises(InvalidRequest, match="stream_options must be an object, got int"):
        split_fields({**body, "stream_options": 1}, CHAT)


def test_values_are_shown_shortly() -> None:
    assert [format_short(value) for value in ("a" * 99, 10**30, 1.5, [[]], None)] == [
        repr("a" * 40), "a huge number", "1.5", "list", "NoneType",
    ]  # fmt: skip


def test_a_member_is_a_string() -> None:
    assert string_member({"id": ""}, "id", "input[0]") == ""
    for value, shown in (({}, "NoneType"), ({"id": 5}, "5"), ({"id": ["x"]}, "list")):
        with pytest.raises(InvalidRequest, match=rf"^input\[0\]\.id must be a string, got {shown}$"):
            string_member(value, "id", "input[0]")


@for_each("value", [{"a": 1}, {}, '{"a": 1}', "", "null", '{"a": ', None])
def test_arguments_are_passed_on_as_they_are(value: Any) -> None:
    assert call_arguments(value, "input") is value


@for_each("value", [5, [], True, 0, False, 1.5])
def test_other_arguments_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^input must be an object or its text, got "):
        call_arguments(value, "input")


def test_an_id_is_shown_without_what_is_not_plain() -> None:
    assert shown_id("resp_1") == "resp_1" and shown_id("a\r\n b\u2028é~") == "ab~"
    assert shown_id("x" * 1000) == "x" * SHOWN_ID_CHARS
