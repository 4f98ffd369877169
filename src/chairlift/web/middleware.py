"""Front: the first to see a request and the last to see its answer: its id, its errors, what is logged of it."""

import asyncio
import logging
import time
from collections.abc import Callable

import orjson
from starlette.exceptions import HTTPException

from chairlift.core.errors import ChairliftError, MethodNotAllowed, NotFound
from chairlift.observability.logging import current_id
from chairlift.web.access_log import Seen, tell
from chairlift.web.body import App, ClientGone, Message, Receive, Scope, Send, ends_connection, header
from chairlift.web.error_responses import Header, answer_of, error_body, error_headers
from chairlift.web.request_id import request_id

log = logging.getLogger(__name__)

METHOD_NOT_ALLOWED = 405
GONE = 499
"""The status in log and metrics of a request whose client left before it was answered."""


class Front:
    """The outermost application. A quiet path is not in the access log unless it fails."""

    def __init__(self, app: App, *, quiet: frozenset[str] = frozenset(), seen: Callable[[Seen], None] | None = None):
        self._app = app
        self._quiet = quiet
        self._seen = seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered, whatever happens."""
        if scope["type"] != "http":
            return
        began = time.monotonic()
        scope["request_id"] = given = request_id(header(scope, b"x-request-id"))
        current_id.set(given)
        answer = _Answer(send, given)
        try:
            await self._app(scope, receive, answer.send)
        except ClientGone as error:
            answer.status, answer.code = GONE, error.code
        except asyncio.CancelledError:
            answer.status = answer.status or GONE
            raise
        except Exception as error:
            await answer.fail(_translated(error))
        finally:
            if "permit" in scope:
                scope["permit"].end()  # where nobody who knew more has
            principal = scope.get("principal")
            self._tell(
                Seen(
                    given, scope["method"], scope.get("route_path", ""), answer.status, time.monotonic() - began,
                    answer.code, "" if principal is None else principal.tenant, scope.get("user_named", ""),
                    scope.get("begun", False),
                ), scope["path"],
            )  # fmt: skip

    def _tell(self, seen: Seen, path: str) -> None:
        if self._seen is not None:
            self._seen(seen)
        if path not in self._quiet or seen.status >= 500:
            tell(seen, path)


class _Answer:
    """What is sent back; knows how far it got, and the code of the error that it ended with."""

    def __init__(self, send: Send, given_id: str) -> None:
        self._send = send
        self._id = given_id
        self.status, self.code = 0, ""

    async def send(self, message: Message) -> None:
        """Pass a message on; the first one gets the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._id.encode())]
        await self._send(message)

    async def fail(self, error: BaseException) -> None:
        """Answer with an error; once an answer has begun it can only be cut off."""
        self.code = error.code if isinstance(error, ChairliftError) else "internal_error"
        status = answer_of(error).status
        if status >= 500 and not (isinstance(error, ChairliftError) and error.retryable):
            log.error("the request failed", exc_info=error)
        if self.status:
            raise error
        headers = list(error_headers(error))
        if ends_connection(error):
            headers.append((b"connection", b"close"))
        await send_bytes(self.send, error_body(error, self._id), status=status, headers=headers)


def _translated(error: Exception) -> Exception:
    """Return our own error for one that the router raises."""
    if not isinstance(error, HTTPException):
        return error
    if error.status_code == METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"this route has other methods: {allowed}", allow=allowed)
    return NotFound("there is no such route")


async def send_bytes(
    send: Send,
    body: bytes,
    *,
    status: int = 200,
    kind: bytes = b"application/json",
    headers: list[Header] | None = None,
) -> None:
    """Send a whole answer."""
    sent = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body})


async def send_object(send: Send, found: object, *, status: int = 200, headers: list[Header] | None = None) -> None:
    """Send an object as JSON."""
    body = orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS)  # our own enumerations may be keys
    await send_bytes(send, body, status=status, headers=headers)
