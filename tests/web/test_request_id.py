"""request_id.py: harmless request ids of clients are kept; any other id is replaced."""

import re

import pytest
from hypothesis import given, settings
from hypothesis.strategies import binary

from chairlift.web.request_id import MAX_ID_CHARS, request_id
from support_shares import for_each

HARMLESS = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")


@pytest.mark.parametrize("client_id", [b"a", b"req-1", b"A.b_c:d-9", b"x" * MAX_ID_CHARS])
def test_a_harmless_id_is_kept(client_id: bytes) -> None:
    assert request_id(client_id) == client_id.decode()


@for_each(
    "client_id",
    [
        None,
        b"",
        b"x" * (MAX_ID_CHARS + 1),
        b"x" * 10_000,
        b"a\r\nset-cookie: b",
        b"a\n",
        b"a b",
        "🚡".encode(),
        b"\xe9",
    ],
)
def test_anything_else_gets_a_new_one(client_id: bytes | None) -> None:
    """Case 53 of the HTTP contract."""
    assert re.fullmatch(r"req-[0-9a-f]{24}", request_id(client_id))


def test_new_ids_differ() -> None:
    assert len({request_id(None) for _ in range(1000)}) == 1000


@settings(max_examples=50)
@given(binary(max_size=80))
def test_whatever_comes_the_id_is_harmless(client_id: bytes) -> None:
    result = request_id(client_id)
    assert HARMLESS.match(result)
    assert result.encode() == client_id or result.startswith("req-")
