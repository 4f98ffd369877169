"""body.py: limits of size and time for bodies, and only JSON objects are accepted."""

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis.strategies import binary, booleans, dictionaries, floats, integers, lists, none, recursive, text

from chairlift.core.errors import (
    BodyTimeout,
    BodyTooLarge,
    ChairliftError,
    InvalidRequest,
    MalformedRequest,
    UnsupportedMediaType,
)
from chairlift.web.body import ClientGone, all_headers, header, parse_json_object, read_body, timeout_of
from support_shares import for_each

Headers = Sequence[tuple[bytes, bytes]]


class FakeReceive:
    """A receive callable that returns parts of a body one by one, then a disconnect, or blocks."""

    def __init__(self, *parts: bytes, ends: bool = True, disconnects: bool = False) -> None:
        self._parts = list(parts)
        self._ends, self._disconnects = ends, disconnects

    @property
    def num_unread(self) -> int:
        return len(self._parts)

    async def __call__(self) -> dict[str, Any]:
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts) or not self._ends}
        if self._disconnects:
            return {"type": "http.disconnect"}
        await asyncio.Event().wait()
        raise AssertionError("this event is never set")


def read_all(receive: FakeReceive, *headers: tuple[bytes, bytes], max_bytes: int = 100, seconds: float = 20) -> bytes:
    return asyncio.run(read_body({"headers": headers}, receive, max_bytes=max_bytes, seconds=seconds))


def read_object(data: bytes, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return parse_json_object(
        asyncio.run(read_body({"headers": headers}, FakeReceive(data), max_bytes=10**6, seconds=20))
    )


def error_message(data: bytes) -> str:
    with pytest.raises(MalformedRequest) as caught:
        read_object(data)
    assert len(str(caught.value)) < 300
    return str(caught.value)


# -- headers -------------------------------------------------------------------------------------------------------


def test_headers_by_name() -> None:
    scope = {"headers": [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]}
    assert header(scope, b"a") == b"1" and header(scope, b"c") is None
    assert all_headers(scope, b"a") == [b"1", b"3"] and all_headers(scope, b"c") == []


# -- reading -------------------------------------------------------------------------------------------------------


@given(lists(binary(max_size=9), min_size=1, max_size=9))
@settings(max_examples=30)
def test_a_body_is_its_pieces(parts: list[bytes]) -> None:
    assert read_all(FakeReceive(*parts)) == b"".join(parts)


def test_a_byte_order_mark_is_no_part_of_a_body() -> None:
    assert read_all(FakeReceive(b"\xef\xbb", b"\xbf{}")) == b"{}"
    assert read_all(FakeReceive(b"{}\xef\xbb\xbf")) == b"{}\xef\xbb\xbf"


def test_a_message_without_a_body_is_an_empty_piece() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    assert asyncio.run(read_body({"headers": []}, receive, max_bytes=1, seconds=20)) == b""


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"100")], [(b"content-length", b"nonsense")]])
def test_the_limit_of_bytes_is_exact(headers: Headers) -> None:
    """Case 14 of the HTTP contract."""
    assert read_all(FakeReceive(b"x" * 60, b"x" * 40), *headers) == b"x" * 100
    with pytest.raises(BodyTooLarge, match="the body has 101 bytes or more, the limit is 100"):
        read_all(FakeReceive(b"x" * 60, b"x" * 41), *headers)


def test_reading_stops_where_it_is_too_much() -> None:
    """Case 14 of the HTTP contract."""
    receive = FakeReceive(*[b"x" * 30] * 1000)
    with pytest.raises(BodyTooLarge):
        read_all(receive)
    assert receive.num_unread == 996


@pytest.mark.parametrize("value", [b"101", b"9" * 5000])
def test_what_says_that_it_is_too_large_is_not_read_at_all(value: bytes) -> None:
    """Case 14 of the HTTP contract."""
    receive = FakeReceive(b"x")
    with pytest.raises(BodyTooLarge, match="the limit is 100") as caught:
        read_all(receive, (b"content-length", value))
    assert receive.num_unread == 1 and len(str(caught.value)) < 100


@pytest.mark.parametrize("receive", [FakeReceive(ends=False), FakeReceive(b"a", b"b", ends=False)])
def test_a_body_that_does_not_come_is_not_waited_for(receive: FakeReceive) -> None:
    """Case 15 of the HTTP contract."""
    with pytest.raises(BodyTimeout, match=r"did not arrive within 0\.02 s"):
        read_all(receive, seconds=0.02)


def test_a_body_that_drips_has_no_more_time() -> None:
    """Case 15 of the HTTP contract. Each part arrives in time, but the whole body does not."""

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.005)
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(BodyTimeout):
        asyncio.run(asyncio.wait_for(read_body({"headers": []}, receive, max_bytes=10**9, seconds=0.1), 20))


def test_a_client_that_leaves_before_the_end_is_disconnected() -> None:
    with pytest.raises(ClientGone):
        read_all(FakeReceive(b'{"a": 1}', ends=False, disconnects=True))


@for_each(
    "type_name",
    [b"application/json", b"Application/JSON", b"application/json; charset=utf-8", b" application/json ;x", b"", b" "],
)
def test_json_by_its_own_word_or_without_one(type_name: bytes) -> None:
    """Case 12 of the HTTP contract."""
    assert read_all(FakeReceive(b"x"), (b"content-type", type_name)) == b"x"


@pytest.mark.parametrize(
    "type_name",
    [b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"json", b"\xff" * 999],
)
def test_another_type_is_not_read(type_name: bytes) -> None:
    """Case 12 of the HTTP contract."""
    receive = FakeReceive(b"x")
    with pytest.raises(UnsupportedMediaType, match="must be application/json, got ") as caught:
        read_all(receive, (b"content-type", type_name))
    assert receive.num_unread == 1 and len(str(caught.value)) < 300


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity, gzip", b"GZIP"])
def test_what_is_compressed_is_not_read(encoding: bytes) -> None:
    """Case 13 of the HTTP contract."""
    receive = FakeReceive(b"x")
    with pytest.raises(UnsupportedMediaType, match="must not be compressed"):
        read_all(receive, (b"content-encoding", encoding))
    assert receive.num_unread == 1
    assert read_all(FakeReceive(b"x"), (b"content-encoding", b"Identity")) == b"x"


# -- objects -------------------------------------------------------------------------------------------------------

VALUES = recursive(
    none()
    | booleans()
    | integers(-(2**63), 2**63 - 1)
    | floats(allow_nan=False, allow_infinity=False)
    | text(max_size=5),
    lambda inner: lists(inner, max_size=3) | dictionaries(text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(dictionaries(text(max_size=5), VALUES, max_size=3))
@settings(max_examples=30)
def test_an_object_is_what_was_written(value: dict[str, Any]) -> None:
    assert read_object(orjson.dumps(value)) == value


@given(binary(max_size=30))
@settings(max_examples=50)
def test_anything_else_is_an_object_or_malformed(data: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        assert isinstance(read_object(data), dict)


@for_each(
    ("data", "type_name"),
    [
        (b"[]", "a list"), (b'"a"', "a string"), (b"null", "null"), (b"1", "a number"), (b"1.5", "a number"),
        (b"true", "a boolean"), (b"false", "a boolean"),
    ],
)  # fmt: skip
def test_what_is_no_object_is_named(data: bytes, type_name: str) -> None:
    """Case 3 of the HTTP contract."""
    assert error_message(data) == f"the body must be a JSON object, got {type_name}"


INVALID_JSON = {
    "empty": b"",
    "blank": b"  ",
    "cut off": b"{",
    "cut off in a string": b'{"a": "b',
    "two": b"{}{}",
    "a comma too many": b'{"a": 1,}',
    "a comment": b'{"a": 1} // x',
    "no UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "two byte order marks": b"\xef\xbb\xbf\xef\xbb\xbf{}",
    "half a pair": rb'{"a": "\ud800"}',
    "half a pair as a key": rb'{"\udc00": 1}',
    "half a pair in bytes": b'{"a": "\xed\xa0\x80"}',
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "1e999": b'{"temperature": 1e999}',
    "5000 digits": b'{"seed": ' + b"9" * 5000 + b"}",
    "a control character": b'{"a": "\n"}',
    "deep lists": b'{"a": ' + b"[" * 100_000,
    "deep objects": b'{"a": ' * 100_000,
    "deep and closed": b'{"a": ' + b"[" * 1100 + b"]" * 1100 + b"}",
}


@pytest.mark.parametrize("data", INVALID_JSON.values(), ids=INVALID_JSON)
def test_what_json_cannot_say_is_refused(data: bytes) -> None:
    """Cases 1, 2 and 4 to 9 of the HTTP contract."""
    assert error_message(data).startswith("the body is not valid JSON: ")


def test_of_duplicate_keys_the_last_one_holds() -> None:
    """Case 10 of the HTTP contract."""
    assert read_object(b'{"a": 1, "b": 2, "a": 3}') == {"a": 3, "b": 2}


def test_numbers_keep_their_kind() -> None:
    value = read_object(b'{"a": 1, "b": 1.0, "c": 18446744073709551615, "d": -0.0}')
    assert [type(number) for number in value.values()] == [int, float, int, float]
    assert math.copysign(1, value["d"]) == -1


# -- connections --------------------------------------------------------------------------------------------------


def test_no_response_is_sent_to_a_disconnected_client() -> None:
    assert issubclass(ClientGone, ChairliftError) and not ClientGone.retryable


@pytest.mark.parametrize(("headers", "field", "seconds"), [
    ((), None, None), ((), 2.0, 2.0), (((b"x-request-timeout-ms", b"1500"),), None, 1.5),
    (((b"x-request-timeout-ms", b"1500"),), 1.0, 1.0), (((b"x-request-timeout-ms", b"1500"),), 2.0, 1.5),
])  # fmt: skip
def test_the_shorter_timeout_of_header_and_field_holds(
    headers: Headers, field: float | None, seconds: float | None
) -> None:
    assert timeout_of({"headers": headers}, field) == seconds


@for_each("value", [b"", b"0", b"-1", b"1.5", b"x", b"86400001", b"9" * 30])
def test_a_timeout_header_out_of_range_is_rejected_by_its_name(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="must be an integer of 1 to 86400000 milliseconds") as rejection:
        timeout_of({"headers": [(b"x-request-timeout-ms", value)]}, None)
    assert rejection.value.details["param"] == "x-request-timeout-ms"
