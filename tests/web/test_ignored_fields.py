"""ignored_fields_header: names of any characters become a header of bounded length."""

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.web.ignored_fields import MAX_CHARS, ignored_fields_header


def test_the_header_has_the_names() -> None:
    assert ignored_fields_header(()) == []
    assert ignored_fields_header(("store", "a\r\nb: c")) == [(b"x-ignored-parameters", b"store, a??b??c")]


def test_the_header_is_bounded() -> None:
    ((_, value),) = ignored_fields_header([f"field{number}" for number in range(10_000)])
    assert len(value) == MAX_CHARS


def test_a_strict_service_rejects_them() -> None:
    assert ignored_fields_header((), is_strict=True) == []
    with pytest.raises(InvalidRequest, match="store has no effect, and this server rejects such fields: store, n"):
        ignored_fields_header(("store", "n"), is_strict=True)
