"""RawResponseCache: builds whole error responses as bytes, for requests rejected before the application."""

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from chairlift.core.errors import ChairliftError
from chairlift.protocol.error_formats import has_openai_form
from chairlift.web.error_responses import Header, error_body, error_headers, error_response_of, request_id_headers

ID_PLACEHOLDER = "\0"
"""Placeholder of the request id, which cannot contain this character."""


def raw_error_response(
    error: ChairliftError, request_id: str, common: list[Header], *, keep_alive: bool, path: str = ""
) -> bytes:
    """Return a whole error response as bytes; the connection closes after it unless `keep_alive`."""
    body = error_body(error, request_id, path)
    headers = [
        *common, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *error_headers(error),
        *request_id_headers(path, request_id), *(() if keep_alive else ((b"connection", b"close"),)),
    ]  # fmt: skip
    lines = [b"%s: %s\r\n" % pair for pair in headers]
    return b"".join([STATUS_LINE[error_response_of(error).status], *lines, b"\r\n", body])


class RawResponseCache:
    """Builds responses to rejected requests; reuses all but the request id for the same error."""

    def __init__(self) -> None:
        self._cached: tuple[ChairliftError, list[Header]] | None = None
        self._before = self._after = b""

    def write(
        self, error: ChairliftError, request_id: str, common: list[Header], *, keep_alive: bool, path: str = ""
    ) -> bytes:
        """Return the whole response to a request; the connection closes after it unless `keep_alive`."""
        has_id = error_response_of(error).status >= 500 or not has_openai_form(path)  # the body, not only a header
        if not keep_alive or has_id:
            return raw_error_response(error, request_id, common, keep_alive=keep_alive, path=path)
        if self._cached is None or self._cached[0] is not error or self._cached[1] is not common:
            self._cached = error, common
            self._before, self._after = raw_error_response(error, ID_PLACEHOLDER, common, keep_alive=True).split(
                ID_PLACEHOLDER.encode()
            )
        return b"%b%b%b" % (self._before, request_id.encode(), self._after)
