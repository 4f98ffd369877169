"""A letter that is kept for the next one says what one that is written anew would say."""

import pytest

from chairlift.core.errors import ChairliftError, EngineDead, InvalidRequest, Overloaded
from chairlift.web.raw_responses import NAME, Letters, raw_answer

COMMON = [(b"server", b"chairlift")]
FULL = Overloaded("full", retry_after=2.5)
ODD = Overloaded('full of "\0" and ü', retry_after=1.0)


@pytest.mark.parametrize("error", [FULL, ODD, InvalidRequest("no", param="x"), EngineDead("gone")], ids=str)
@pytest.mark.parametrize("stays", [True, False])
def test_every_letter_names_its_own_request(error: ChairliftError, stays: bool) -> None:
    letters = Letters()
    for given in ("a", "req-0123", "a", "x" * 64):
        assert letters.write(error, given, COMMON, stays=stays) == raw_answer(error, given, COMMON, stays=stays)


def test_another_error_and_other_common_headers_make_another_letter() -> None:
    letters, later = Letters(), [(b"date", b"now")]
    for error, common in ((FULL, COMMON), (ODD, COMMON), (ODD, later), (FULL, later), (FULL, COMMON)):
        assert letters.write(error, "a", common, stays=True) == raw_answer(error, "a", common, stays=True)


def test_the_same_error_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def seen(error: ChairliftError, given: str, common: list[tuple[bytes, bytes]], *, stays: bool) -> bytes:
        written.append(given)
        return raw_answer(error, given, common, stays=stays)

    monkeypatch.setattr("chairlift.web.raw_responses.raw_answer", seen)
    letters = Letters()
    for given in "abc":
        letters.write(FULL, given, COMMON, stays=True)
    assert written == [NAME]
