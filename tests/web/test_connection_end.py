"""abort_connection, ends_connection: which errors end a connection, and how the server drops one."""

import pytest

from chairlift.core.errors import (
    BodyTimeout,
    BodyTooLarge,
    InvalidRequest,
    MalformedRequest,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)
from chairlift.web.connection_end import abort_connection, ends_connection


def test_a_connection_is_dropped_where_the_server_says_how() -> None:
    dropped: list[int] = []
    abort_connection({"state": {"abort": lambda: dropped.append(1)}})
    assert dropped == [1]
    for scope in ({}, {"state": {}}):
        abort_connection(scope)


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (BodyTooLarge("x"), True),
        (BodyTimeout("x"), True),
        (UnsupportedMediaType("x"), True),
        (Unavailable("x", state="draining"), True),
        (Unavailable("x", state="starting"), False),
        (Unavailable("x"), False),
        (MalformedRequest("x"), False),
        (InvalidRequest("x"), False),
        (Unauthorized("x"), False),
        (ValueError("x"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_a_connection_ends_where_its_body_was_not_read_or_the_server_leaves(error: Exception, ends: bool) -> None:
    assert ends_connection(error) == ends
