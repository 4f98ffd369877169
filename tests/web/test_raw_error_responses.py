"""RawResponseCache: a response from the cache has the same bytes as one that is built anew."""

import pytest

from chairlift.core.errors import ChairliftError, EngineDead, InvalidRequest, Overloaded
from chairlift.web.raw_error_responses import ID_PLACEHOLDER, RawResponseCache, raw_error_response

COMMON = [(b"server", b"chairlift")]
FULL = Overloaded("full", retry_after=2.5)
SPECIAL_CHARS = Overloaded('full of "\0" and ü', retry_after=1.0)


@pytest.mark.parametrize("error", [FULL, SPECIAL_CHARS, InvalidRequest("no", param="x"), EngineDead("gone")], ids=str)
@pytest.mark.parametrize("keep_alive", [True, False])
def test_every_response_has_its_own_request_id(error: ChairliftError, keep_alive: bool) -> None:
    cache = RawResponseCache()
    for request_id in ("a", "req-0123", "a", "x" * 64):
        assert cache.write(error, request_id, COMMON, keep_alive=keep_alive) == raw_error_response(
            error, request_id, COMMON, keep_alive=keep_alive
        )


def test_another_error_or_other_common_headers_change_the_response() -> None:
    cache, other_headers = RawResponseCache(), [(b"date", b"now")]
    for error, common in (
        (FULL, COMMON),
        (SPECIAL_CHARS, COMMON),
        (SPECIAL_CHARS, other_headers),
        (FULL, other_headers),
        (FULL, COMMON),
    ):
        assert cache.write(error, "a", common, keep_alive=True) == raw_error_response(
            error, "a", common, keep_alive=True
        )


def test_the_same_error_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    request_ids: list[str] = []

    def build(error: ChairliftError, request_id: str, common: list[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
        request_ids.append(request_id)
        return raw_error_response(error, request_id, common, keep_alive=keep_alive)

    monkeypatch.setattr("chairlift.web.raw_error_responses.raw_error_response", build)
    cache = RawResponseCache()
    for request_id in "abc":
        cache.write(FULL, request_id, COMMON, keep_alive=True)
    assert request_ids == [ID_PLACEHOLDER]
