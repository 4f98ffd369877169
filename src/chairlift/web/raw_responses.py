"""Letters: whole answers as bytes, for who is refused before there is an application that could answer."""

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from chairlift.core.errors import ChairliftError
from chairlift.web.error_responses import Header, answer_of, error_body, error_headers

NAME = "\0"
"""Stands for the name of a request, which has no such character."""


def raw_answer(error: ChairliftError, given: str, common: list[Header], *, stays: bool) -> bytes:
    """Return a whole answer as bytes; the connection ends with it unless it `stays`."""
    body = error_body(error, given)
    headers = [
        *common, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *error_headers(error),
        (b"x-request-id", given.encode()), *(() if stays else ((b"connection", b"close"),)),
    ]  # fmt: skip
    lines = [b"%s: %s\r\n" % pair for pair in headers]
    return b"".join([STATUS_LINE[answer_of(error).status], *lines, b"\r\n", body])


class Letters:
    """Writes to who is turned away; what is in a letter but the name is kept for the next one with the same error."""

    def __init__(self) -> None:
        self._told: tuple[ChairliftError, list[Header]] | None = None
        self._before = self._after = b""

    def write(self, error: ChairliftError, given: str, common: list[Header], *, stays: bool) -> bytes:
        """Return a whole answer to the request `given`; the connection ends with it unless it `stays`."""
        if not stays or answer_of(error).status >= 500:  # whose body has the name, too
            return raw_answer(error, given, common, stays=stays)
        if self._told is None or self._told[0] is not error or self._told[1] is not common:
            self._told = error, common
            self._before, self._after = raw_answer(error, NAME, common, stays=True).split(NAME.encode())
        return b"%b%b%b" % (self._before, given.encode(), self._after)
