"""Bodies: read within bytes and seconds, and turned into JSON that JSON can say."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson

from chairlift.core.errors import (
    BodyTimeout,
    BodyTooLarge,
    ChairliftError,
    MalformedRequest,
    Unavailable,
    UnsupportedMediaType,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON_TYPES = ("application/json", "")
MAX_SAID = 200


class ClientGone(ChairliftError):
    """Nobody is there any more to whom anything could be said."""

    code = "client_gone"


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return a header's value, None where there is none; the first where there are several."""
    return next((value for key, value in scope["headers"] if key == name), None)


def all_headers(scope: Scope, name: bytes) -> list[bytes]:
    """Return the values of all headers of a name."""
    return [value for key, value in scope["headers"] if key == name]


def abort_connection(scope: Scope) -> None:
    """Drop the connection of a request, with whatever its client has not taken yet."""
    abort: Callable[[], None] | None = scope.get("state", {}).get("abort")
    if abort is not None:
        abort()


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int, seconds: float) -> bytes:
    """Return the body of a request.

    Raises UnsupportedMediaType for what is no plain JSON by its own word, BodyTooLarge as soon as that is known,
    BodyTimeout, ClientGone.
    """
    check_type(scope)
    told = header(scope, b"content-length")
    if told is not None and told.isdigit() and int(told[:20]) > max_bytes:
        raise BodyTooLarge(f"the body has {told[:20].decode()} bytes, the limit is {max_bytes}")
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client left before its request was there")
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > max_bytes:
                    raise BodyTooLarge(f"the body has {size} bytes or more, the limit is {max_bytes}")
                if not message.get("more_body"):
                    return b"".join(pieces)
    except TimeoutError:
        raise BodyTimeout(f"the body did not come within {seconds:g} s") from None


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is; of duplicate keys the last one. Raises MalformedRequest.

    What JSON cannot say (NaN, 1e999, half a surrogate pair, bytes that are no UTF-8) and what is nested deeper than
    1,024 levels is refused.
    """
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"the body is not valid JSON: {str(error)[:MAX_SAID]}") from None
    if not isinstance(found, dict):
        raise MalformedRequest(f"the body must be a JSON object, got {_kind(found)}")
    return found


def ends_connection(error: BaseException) -> bool:
    """Tell whether no other request can follow: the rest of this one was not read, or the server is leaving."""
    if isinstance(error, Unavailable):
        return error.details.get("state") == "draining"
    return isinstance(error, BodyTooLarge | BodyTimeout | UnsupportedMediaType)


def check_type(scope: Scope) -> None:
    """Raise UnsupportedMediaType for a body that is no plain JSON by its own word."""
    given = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if given not in JSON_TYPES:
        raise UnsupportedMediaType(f"the content type must be application/json, got {given[:MAX_SAID]}")
    encoding = (header(scope, b"content-encoding") or b"identity").strip().lower().decode("latin-1")
    if encoding != "identity":
        raise UnsupportedMediaType(f"bodies cannot be compressed here, got content encoding {encoding[:MAX_SAID]}")


def _kind(value: Any) -> str:
    kinds: Iterable[tuple[type, str]] = ((list, "a list"), (str, "a string"), (bool, "a boolean"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null" if value is None else "a number")
