"""RequestMiddleware: the outermost ASGI application; sets request ids, sends errors, and writes the access log."""

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.exceptions import HTTPException

from chairlift.core.errors import ChairliftError, MethodNotAllowed
from chairlift.observability.logging import current_id, current_trace_id
from chairlift.observability.tracing.tracer import Tracer
from chairlift.protocol.error_formats import VERSION_HEADER
from chairlift.web.access_log import AccessRecord, log_access
from chairlift.web.body import App, ClientGone, Message, Receive, Scope, Send, header
from chairlift.web.connection_end import ends_connection
from chairlift.web.error_responses import error_body, error_headers, error_response_of, no_route, request_id_headers
from chairlift.web.request_id import request_id
from chairlift.web.request_info import RequestInfo, request_info
from chairlift.web.send_response import send_bytes

log = logging.getLogger(__name__)

METHOD_NOT_ALLOWED = 405
TRACE_ID_HEADER = b"x-trace-id"
CLIENT_CLOSED_REQUEST = 499
"""Status in log and metrics of a request whose client disconnected before the response."""


class RequestMiddleware:
    """Wraps the application. The access log omits a quiet path unless it fails.

    Every response of a request has the headers that its RequestInfo.response_headers returns, if a route has set it. A
    quiet path is never traced.
    """

    def __init__(
        self,
        app: App,
        *,
        quiet: frozenset[str] = frozenset(),
        on_response: Callable[[AccessRecord], None] | None = None,
        tracer: Tracer | None = None,
    ):
        self._app = app
        self._quiet = quiet
        self._on_response = on_response
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and respond with an error if the application raises one."""
        if scope["type"] != "http":
            return
        started_at = time.monotonic()
        info = request_info(scope)
        info.request_id = request_id(header(scope, b"x-request-id"))
        current_id.set(info.request_id)
        if (tracer := self._tracer) is not None:
            current_trace_id.set("")  # a pipelined request begins in the context of the one before
            if scope["path"] not in self._quiet:
                info.trace = tracer.start_request(scope)
        has_version = header(scope, VERSION_HEADER) is not None
        writer = _ResponseWriter(send, info, scope["path"], has_version=has_version)
        try:
            await self._app(scope, receive, writer.send)
        except ClientGone as error:
            writer.status, writer.code = CLIENT_CLOSED_REQUEST, error.code
        except asyncio.CancelledError:
            writer.status = writer.status or CLIENT_CLOSED_REQUEST
            raise
        except Exception as error:
            await writer.fail(_as_chairlift_error(error, scope["path"]))
        finally:
            if info.permit is not None:
                info.permit.end()  # if no code with more knowledge has ended it
            self._report(
                AccessRecord(
                    info.request_id, scope["method"], info.route_path, writer.status, time.monotonic() - started_at,
                    writer.code, "" if info.principal is None else info.principal.tenant, info.user,
                    info.was_submitted,
                ), scope["path"],
            )  # fmt: skip
            if tracer is not None and info.trace is not None:
                status = 0 if writer.status == CLIENT_CLOSED_REQUEST else writer.status
                tracer.end_request(info.trace, info.route_path, status, writer.code)

    def _report(self, record: AccessRecord, path: str) -> None:
        if self._on_response is not None:
            self._on_response(record)
        if path not in self._quiet or record.status >= 500:
            log_access(record, path)


class _ResponseWriter:
    """Sends one response, and records its status and the code of the error that ended it.

    A client learns the id of a sampled trace by the header x-trace-id.
    """

    def __init__(self, send: Send, info: RequestInfo, path: str, *, has_version: bool) -> None:
        """Prepare the response of a request to this path; later, its scope may have that of an inner route.

        `has_version` as of format_error.
        """
        self._send = send
        self._info = info
        self._path, self._has_version = path, has_version
        self._id_headers = request_id_headers(path, info.request_id, has_version=has_version)
        self.status, self.code = 0, ""

    async def send(self, message: Message) -> None:
        """Send an ASGI message; add the request's id, and the route's own headers, to the first one."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._id_headers]
            if (trace := self._info.trace) is not None:  # a replica's own header names the same trace
                others = [pair for pair in message["headers"] if pair[0] != TRACE_ID_HEADER]
                message["headers"] = [*others, (TRACE_ID_HEADER, trace.trace_id.encode())]
            if (more := self._info.response_headers) is not None:
                message["headers"] += more()
        await self._send(message)

    async def fail(self, error: BaseException) -> None:
        """Respond with an error; re-raise it if a response has started, which can only be cut off."""
        self.code = error.code if isinstance(error, ChairliftError) else "internal_error"
        status = error_response_of(error).status
        if status >= 500 and not (isinstance(error, ChairliftError) and error.retryable):
            log.error("the request failed", exc_info=error)
        if self.status:
            raise error
        headers = list(error_headers(error))
        if ends_connection(error):
            headers.append((b"connection", b"close"))
        body = error_body(error, self._info.request_id, self._path, has_version=self._has_version)
        await send_bytes(self.send, body, status=status, headers=headers)


def _as_chairlift_error(error: Exception, path: str) -> Exception:
    """Return a ChairliftError for an HTTPException of the router; other errors as they are."""
    if not isinstance(error, HTTPException):
        return error
    if error.status_code == METHOD_NOT_ALLOWED:
        allowed_methods = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"this route has other methods: {allowed_methods}", allow=allowed_methods)
    return no_route(path)
