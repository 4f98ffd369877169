"""ErrorResponse: the one table of HTTP status and OpenAI error type for each kind of error."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from chairlift.core.errors import ChairliftError, Detail, NotFound
from chairlift.protocol.error_formats import REQUEST_ID_HEADER, format_error, has_anthropic_form
from chairlift.protocol.sse import named_event

Header = tuple[bytes, bytes]

MAX_PATH_CHARS = 128
"""Characters of a path that a message repeats."""

INVALID, AUTHENTICATION, PERMISSION, NOT_FOUND, RATE, SERVER = (
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "rate_limit_error",
    "server_error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The HTTP response to one kind of error.

    Attributes:
        status: the HTTP status.
        type: OpenAI's error type.
        message: replaces the error's own message, which may name files and addresses; "" keeps that.
    """

    status: int
    type: str
    message: str = ""


_TABLE: dict[str, ErrorResponse] = {
    "invalid_request": ErrorResponse(400, INVALID),
    "malformed_request": ErrorResponse(400, INVALID),
    "timeout_too_short": ErrorResponse(400, INVALID),
    "duplicate_request_id": ErrorResponse(409, INVALID),
    "fingerprint_mismatch": ErrorResponse(409, INVALID),
    "invalid_api_key": ErrorResponse(401, AUTHENTICATION),
    "forbidden": ErrorResponse(403, PERMISSION),
    "not_found": ErrorResponse(404, NOT_FOUND),
    "model_not_found": ErrorResponse(404, INVALID),
    "method_not_allowed": ErrorResponse(405, INVALID),
    "body_timeout": ErrorResponse(408, INVALID),
    "timeout": ErrorResponse(408, INVALID),
    "body_too_large": ErrorResponse(413, INVALID),
    "unsupported_media_type": ErrorResponse(415, INVALID),
    "headers_too_large": ErrorResponse(431, INVALID),
    "queue_full": ErrorResponse(429, RATE),
    "deadline_unreachable": ErrorResponse(429, RATE),
    "rate_limited": ErrorResponse(429, RATE),
    "overloaded": ErrorResponse(429, RATE),
    "out_of_blocks": ErrorResponse(503, SERVER, "the engine has no memory left for this request now"),
    "unavailable": ErrorResponse(503, SERVER),
    "engine_dead": ErrorResponse(503, SERVER, "the engine stopped while it worked on this"),
    "replica_failed": ErrorResponse(502, SERVER),
    "replica_timeout": ErrorResponse(504, SERVER),
    "request_failed": ErrorResponse(500, SERVER, "the request failed inside the model"),
    "forward_failed": ErrorResponse(500, SERVER, "the model fails on this request"),
    "non_finite_logits": ErrorResponse(500, SERVER, "the model computed no finite number for this request"),
    "no_allowed_token": ErrorResponse(400, INVALID),
    "sampling_failed": ErrorResponse(500, SERVER, "no token can be sampled for this request"),
    "structured_output_failed": ErrorResponse(500, SERVER, "the grammar of this output cannot be followed any further"),
    "structured_output_too_complex": ErrorResponse(400, INVALID),
    "detokenize_failed": ErrorResponse(500, SERVER, "no text can be made of this output"),
}  # fmt: skip

INTERNAL_ERROR = ErrorResponse(500, SERVER, "internal server error; the server's log has the reason, by request id")

RETRY_SECONDS = 1.0
"""Seconds to retry after, for a retryable error that names no time."""

REPEATS = frozenset({"timeout", "body_timeout", "duplicate_request_id", "fingerprint_mismatch", "timeout_too_short"})
"""Codes of errors about time or ids for which a client might retry, although a retry cannot help."""


def error_response_of(error: BaseException) -> ErrorResponse:
    """Return an error's response: the table's entry of its class, or of the nearest base class."""
    return _of_kind(type(error))


def _search(kind: type) -> ErrorResponse:
    kinds = (above for above in kind.__mro__ if issubclass(above, ChairliftError))
    return next((_TABLE[above.code] for above in kinds if above.code in _TABLE), INTERNAL_ERROR)


_of_kind: Callable[[type], ErrorResponse] = cache(_search)


def is_retryable(error: BaseException) -> bool:
    """Return whether the same request may succeed later, or on another server."""
    return isinstance(error, ChairliftError) and error.retryable and error.code not in REPEATS


def error_object(error: BaseException, request_id: str) -> dict[str, Any]:
    """Return the OpenAI error object; it discloses no path, address or traceback."""
    response = error_response_of(error)
    code, param = "internal_error", None
    message = response.message
    if isinstance(error, ChairliftError):
        code, param = error.code, error.details.get("param")
        message = message or error.message
        if error.details.get("state") is not None:
            code = str(error.details["state"])
    if response.status >= 500:
        message = f"{message} (request {request_id})"
    return {"message": message, "type": response.type, "param": param, "code": code}


def error_body(error: BaseException, request_id: str, path: str = "", *, has_version: bool = False) -> bytes:
    """Return the JSON body of an error's response, in the form of the API that the path belongs to.

    `has_version` as of format_error.
    """
    status = error_response_of(error).status
    return orjson.dumps(
        format_error(path, error_object(error, request_id), status, request_id, has_version=has_version)
    )


def stream_error_event(error: BaseException, request_id: str) -> bytes:
    """Return the event that ends a stream with an error; `retryable` says whether another replica may help."""
    body = error_object(error, request_id) | {"retryable": is_retryable(error)}
    return named_event(b"error", orjson.dumps({"error": body}))


def request_id_headers(path: str, request_id: str, *, has_version: bool = False) -> list[Header]:
    """Return the headers with the request's id, as every response of a path has them.

    `has_version` as of format_error.
    """
    is_anthropic = has_anthropic_form(path, has_version=has_version)
    names = (b"x-request-id", *((REQUEST_ID_HEADER,) if is_anthropic else ()))
    return [(name, request_id.encode()) for name in names]


def error_headers(error: BaseException) -> Iterator[Header]:
    """Yield the headers of an error's response: retry, allowed methods, authentication."""
    status = error_response_of(error).status
    if status == 401:
        yield b"www-authenticate", b"Bearer"
    if not isinstance(error, ChairliftError):
        yield b"x-should-retry", b"false"
        return
    if "allow" in error.details:
        yield b"allow", str(error.details["allow"]).encode()
    if is_retryable(error):
        seconds = _seconds(error.details.get("retry_after"))
        yield b"retry-after", b"%d" % math.ceil(seconds)
        yield b"retry-after-ms", b"%d" % math.ceil(seconds * 1000)
    elif status >= 500 or error.code in REPEATS:
        yield b"x-should-retry", b"false"


def _seconds(seconds_value: Detail) -> float:
    return (
        float(seconds_value)
        if isinstance(seconds_value, int | float) and 0 < seconds_value < math.inf
        else RETRY_SECONDS
    )


def no_route(path: str, hint: str = "; /docs lists the routes") -> NotFound:
    """Return the error of a path that no route has, which names the path in bounded printable ASCII."""
    shown = "".join(char if " " < char <= "~" else "?" for char in path[:MAX_PATH_CHARS])
    return NotFound(f"there is no route {shown}{'...' if len(path) > MAX_PATH_CHARS else ''}{hint}")
