"""Errors to answers: the one table of what status and what OpenAI error object each kind of error gets."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from chairlift.core.errors import ChairliftError, Detail

Header = tuple[bytes, bytes]

INVALID, AUTHENTICATION, PERMISSION, NOT_FOUND, RATE, SERVER = (
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "rate_limit_error",
    "server_error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """What an error gets.

    Attributes:
        status: of HTTP.
        type: OpenAI's word for the kind.
        said: a sentence that takes the place of the error's own, which may name files and addresses; "" keeps that.
    """

    status: int
    type: str
    said: str = ""


_TABLE: dict[str, Answer] = {
    "invalid_request": Answer(400, INVALID),
    "malformed_request": Answer(400, INVALID),
    "duplicate_request_id": Answer(409, INVALID),
    "invalid_api_key": Answer(401, AUTHENTICATION),
    "forbidden": Answer(403, PERMISSION),
    "not_found": Answer(404, NOT_FOUND),
    "model_not_found": Answer(404, INVALID),
    "method_not_allowed": Answer(405, INVALID),
    "body_timeout": Answer(408, INVALID),
    "timeout": Answer(408, INVALID),
    "body_too_large": Answer(413, INVALID),
    "unsupported_media_type": Answer(415, INVALID),
    "headers_too_large": Answer(431, INVALID),
    "queue_full": Answer(429, RATE),
    "deadline_unreachable": Answer(429, RATE),
    "rate_limited": Answer(429, RATE),
    "overloaded": Answer(429, RATE),
    "out_of_blocks": Answer(503, SERVER, "the engine has no memory left for this request now"),
    "unavailable": Answer(503, SERVER),
    "engine_dead": Answer(503, SERVER, "the engine stopped while it worked on this"),
    "request_failed": Answer(500, SERVER, "the request failed inside the model"),
    "forward_failed": Answer(500, SERVER, "the model fails on this request"),
    "non_finite_logits": Answer(500, SERVER, "the model computed no finite number for this request"),
    "no_allowed_token": Answer(400, INVALID),
    "sampling_failed": Answer(500, SERVER, "no token can be drawn for this request"),
    "structured_output_failed": Answer(500, SERVER, "the structure of this output cannot be followed any further"),
    "detokenize_failed": Answer(500, SERVER, "no text can be made of this output"),
}  # fmt: skip

UNKNOWN = Answer(500, SERVER, "the server made a mistake; its log says which, by this request's id")

RETRY_SECONDS = 1.0
"""What a retryable error that names no time gets."""

REPEATS = frozenset({"timeout", "body_timeout", "duplicate_request_id"})
"""Errors with a status that the OpenAI client tries again, to no avail."""


def answer_of(error: BaseException) -> Answer:
    """Return what an error gets: its own line of the table, or that of the nearest kind above it."""
    return _of_kind(type(error))


def _search(kind: type) -> Answer:
    kinds = (above for above in kind.__mro__ if issubclass(above, ChairliftError))
    return next((_TABLE[above.code] for above in kinds if above.code in _TABLE), UNKNOWN)


_of_kind: Callable[[type], Answer] = cache(_search)


def error_object(error: BaseException, request_id: str) -> dict[str, Any]:
    """Return the OpenAI error object. What may name a path, an address or a traceback is not repeated."""
    answer = answer_of(error)
    code, param = "internal_error", None
    said = answer.said
    if isinstance(error, ChairliftError):
        code, param = error.code, error.details.get("param")
        said = said or error.message
        if error.details.get("state") is not None:
            code = str(error.details["state"])
    if answer.status >= 500:
        said = f"{said} (request {request_id})"
    return {"message": said, "type": answer.type, "param": param, "code": code}


def error_body(error: BaseException, request_id: str) -> bytes:
    """Return the JSON of an error's answer."""
    return orjson.dumps({"error": error_object(error, request_id)})


def error_headers(error: BaseException) -> Iterator[Header]:
    """Yield what an error's answer says in headers: whether and when to come again, and what else there is."""
    status = answer_of(error).status
    if status == 401:
        yield b"www-authenticate", b"Bearer"
    if not isinstance(error, ChairliftError):
        yield b"x-should-retry", b"false"
        return
    if "allow" in error.details:
        yield b"allow", str(error.details["allow"]).encode()
    if error.retryable and error.code not in REPEATS:
        seconds = _seconds(error.details.get("retry_after"))
        yield b"retry-after", b"%d" % math.ceil(seconds)
        yield b"retry-after-ms", b"%d" % math.ceil(seconds * 1000)
    elif status >= 500 or error.code in REPEATS:
        yield b"x-should-retry", b"false"


def _seconds(given: Detail) -> float:
    return float(given) if isinstance(given, int | float) and 0 < given < math.inf else RETRY_SECONDS
