"""read_body and parse_json_object: read a request body within limits of size and time, and parse strict JSON."""

import asyncio
import codecs
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson

from chairlift.core.errors import BodyTimeout, BodyTooLarge, ChairliftError, MalformedRequest, UnsupportedMediaType
from chairlift.core.validation import invalid_param
from chairlift.protocol.router_headers import MAX_TIMEOUT_MS, TIMEOUT_HEADER

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON_TYPES = ("application/json", "")
MAX_SHOWN_CHARS = 200


class ClientGone(ChairliftError):
    """The client has closed the connection, so no response can be sent."""

    code = "client_gone"


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return a header's first value, None if the header is absent."""
    return next((value for key, value in scope["headers"] if key == name), None)


def has_flag(scope: Scope, name: bytes) -> bool:
    """Return whether a header has the value 1."""
    return header(scope, name) == b"1"


def all_headers(scope: Scope, name: bytes) -> list[bytes]:
    """Return the values of all headers with this name."""
    return [value for key, value in scope["headers"] if key == name]


def timeout_of(scope: Scope, requested_seconds: float | None) -> float | None:
    """Return the seconds that a request may take: the shorter of its header and its field. Raises InvalidRequest."""
    value = header(scope, TIMEOUT_HEADER)
    if value is None:
        return requested_seconds
    if not value.isdigit() or len(value) > 9 or not 0 < int(value) <= MAX_TIMEOUT_MS:
        raise invalid_param(TIMEOUT_HEADER.decode(), f"must be an integer of 1 to {MAX_TIMEOUT_MS} milliseconds")
    seconds = int(value) / 1000
    return seconds if requested_seconds is None else min(seconds, requested_seconds)


async def read_body(
    scope: Scope, receive: Receive, *, max_bytes: int, seconds: float, any_type: bool = False
) -> bytes:  # fmt: skip
    """Return the body of a request, without a byte order mark.

    Raises UnsupportedMediaType unless its headers declare plain JSON or `any_type` is set, BodyTooLarge as soon as that
    is known, BodyTimeout, ClientGone.
    """
    if not any_type:
        check_type(scope)
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length[:20]) > max_bytes:
        raise BodyTooLarge(f"the body has {length[:20].decode()} bytes, the limit is {max_bytes}")
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client disconnected before its request was complete")
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > max_bytes:
                    raise BodyTooLarge(f"the body has {size} bytes or more, the limit is {max_bytes}")
                if not message.get("more_body"):
                    return b"".join(pieces).removeprefix(codecs.BOM_UTF8)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {seconds:g} s") from None


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Return a body's JSON object; of duplicate keys the last one counts. Raises MalformedRequest.

    Rejects what strict JSON excludes (NaN, 1e999, half a surrogate pair, invalid UTF-8) and nesting deeper than
    1,024 levels.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"the body is not valid JSON: {str(error)[:MAX_SHOWN_CHARS]}") from None
    if not isinstance(value, dict):
        raise MalformedRequest(f"the body must be a JSON object, got {_kind(value)}")
    return value


def check_type(scope: Scope) -> None:
    """Raise UnsupportedMediaType unless the headers declare a plain JSON body."""
    content_type = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if content_type not in JSON_TYPES:
        raise UnsupportedMediaType(f"the content type must be application/json, got {content_type[:MAX_SHOWN_CHARS]}")
    encoding = (header(scope, b"content-encoding") or b"identity").strip().lower().decode("latin-1")
    if encoding != "identity":
        raise UnsupportedMediaType(
            f"the body must not be compressed, got content encoding {encoding[:MAX_SHOWN_CHARS]}"
        )


def _kind(value: Any) -> str:
    kinds: Iterable[tuple[type, str]] = ((list, "a list"), (str, "a string"), (bool, "a boolean"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null" if value is None else "a number")
