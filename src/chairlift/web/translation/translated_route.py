"""TranslatedRoute: serves a route of another API by a route of the OpenAI API, in a server and in a router.

    body ──> Translator ──> route of the OpenAI API ──> TranslatedResponse ──> response, or events

Limits, admission, failover and metrics are those of the inner route: it runs within the same request.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from chairlift.core.errors import InvalidRequest, MalformedRequest
from chairlift.protocol.router_headers import PROGRESS_HEADER
from chairlift.protocol.translation.base import ClientRequest, FieldNames, Translation, Translator
from chairlift.web.admission import AdmissionController
from chairlift.web.body import App, Message, Receive, Scope, Send, parse_json_object, read_body
from chairlift.web.error_responses import Header
from chairlift.web.ignored_fields import ignored_fields_header
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.request_info import request_info
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.translation.translated_response import TranslatedResponse

SMALL_BODY_BYTES = 65_536
"""Bodies up to this size are translated on the event loop, which takes a millisecond at most."""

MAX_WRITTEN_NESTING = 254
"""Levels of JSON that orjson writes."""

MAX_NESTING = 240
"""Levels of a body, of which a response repeats parts within its own levels."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TranslatedRoute:
    """A route of another API.

    Attributes:
        inner: route of the OpenAI API that serves the translated requests.
        translator: translates requests and responses.
        config: limits of HTTP.
        lifecycle: says whether the service accepts requests.
        admission: queue of requests; a body is not translated while it is full.
        is_strict: whether fields without effect are rejected.
        is_slow: says which small bodies are slow to translate, in another thread, too.
    """

    inner: App
    translator: Translator
    config: HttpConfig
    lifecycle: Lifecycle
    admission: AdmissionController
    is_strict: bool = False
    is_slow: Callable[[bytes], bool] = lambda body: False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Translate the request, let the inner route serve it, and translate its response.

        Raises the errors of the inner route, with the names of the request's own fields.
        """
        request = await self.read(scope, receive)
        await self.serve(await self.translate(request, scope), request, scope, receive, send)

    async def read(self, scope: Scope, receive: Receive) -> "TranslatedRequest":
        """Return the body of a request. Raises what is wrong with it, and the errors of a server without room."""
        self.lifecycle.check()
        body = await read_body(
            scope, receive, max_bytes=self.config.max_body_bytes, seconds=self.config.body_timeout
        )  # fmt: skip
        if request_info(scope).permit is None:
            self.admission.check(body_bytes=len(body))
        is_quick = len(body) <= SMALL_BODY_BYTES and not self.is_slow(body)
        return TranslatedRequest(await _off_loop(lambda: _parse(body), is_quick=is_quick), is_quick)

    async def translate(self, request: "TranslatedRequest", scope: Scope) -> Translation:
        """Return the translation of a request. Raises InvalidRequest and NotFound."""
        info = request_info(scope)
        client = ClientRequest(info.authenticated.tenant, info.request_id, lambda: info.first_token_at)
        return await _off_loop(
            lambda: self.translator.translate(request.fields, client), is_quick=request.is_quick
        )  # fmt: skip

    async def serve(
        self, translation: Translation, request: "TranslatedRequest", scope: Scope, receive: Receive, send: Send
    ) -> None:  # fmt: skip
        """Let the inner route serve a translated request, and translate its response."""
        ignored = self.ignored_header(translation)
        inner_body = await _off_loop(lambda: orjson.dumps(translation.body), is_quick=request.is_quick)
        request_id = request_info(scope).request_id
        response = TranslatedResponse(
            send, translation, scope["path"], request_id, ignored, ping_interval=self.config.sse_ping_interval
        )  # fmt: skip
        with _InnerRequest(scope, self.translator.inner_path, len(inner_body)):
            try:
                await self.inner(scope, _receiver(inner_body, receive), response.send)
            except InvalidRequest as error:
                raise own_error(error, translation.names) from None

    def ignored_header(self, translation: Translation) -> list[Header]:
        """Return the header with the fields without effect. Raises InvalidRequest if the service is strict."""
        return ignored_fields_header(translation.ignored, is_strict=self.is_strict)


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A request before its translation.

    Attributes:
        fields: fields of its body.
        is_quick: whether its translation takes a millisecond at most.
    """

    fields: dict[str, Any]
    is_quick: bool


def own_error(error: InvalidRequest, names: FieldNames) -> InvalidRequest:
    """Return the error with the name that its field has in the request."""
    param = error.details.get("param")
    if not isinstance(param, str) or (own := names.own(param)) == param:
        return error
    return type(error).from_wire(names.own_message(error.message, param), {**error.details, "param": own})


async def _off_loop(work: Callable[[], T], *, is_quick: bool) -> T:
    """Run work on a body, in another thread unless it is quick."""
    return work() if is_quick else await asyncio.to_thread(work)


def _parse(body: bytes) -> dict[str, Any]:
    """Return the object of a body that can be written again, within a response, too. Raises MalformedRequest."""
    value = parse_json_object(body)
    if body.count(b"{") + body.count(b"[") > MAX_NESTING:
        nested: object = value
        for _ in range(MAX_WRITTEN_NESTING - MAX_NESTING):
            nested = [nested]
        try:
            orjson.dumps(nested)
        except orjson.JSONEncodeError:
            raise MalformedRequest(f"the body is nested deeper than {MAX_NESTING} levels, which is the limit") from None
    return value


def _receiver(body: bytes, receive: Receive) -> Receive:
    """Return what the inner route receives: the translated body, then what the client does."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_inner() -> Message:
        return pending.pop() if pending else await receive()

    return receive_inner


class _InnerRequest:
    """Makes a scope that of the inner route, within a context."""

    def __init__(self, scope: Scope, path: str, num_bytes: int) -> None:
        self._scope = scope
        self._outer: Mapping[str, Any] = {
            name: scope.get(name) for name in ("path", "raw_path", "query_string", "headers")
        }
        replaced = (b"content-length", b"content-type", b"transfer-encoding", PROGRESS_HEADER)
        headers = [pair for pair in scope["headers"] if pair[0] not in replaced]
        self._inner = {
            "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [*headers, (b"content-type", b"application/json"), (b"content-length", b"%d" % num_bytes)],
        }  # fmt: skip

    def __enter__(self) -> None:
        self._scope.update(self._inner)

    def __exit__(self, *error: object) -> None:
        self._scope.update(self._outer)
