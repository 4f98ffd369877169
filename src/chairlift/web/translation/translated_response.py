"""TranslatedResponse: receives the response of a route of the OpenAI API, and sends that of another API."""

import asyncio
import time
from collections.abc import Sequence

import orjson

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.error_formats import format_error
from chairlift.protocol.sse import DONE, EventReader, ServerSentEvent, comment_block
from chairlift.protocol.translation.base import Json, StreamTranslation, Translation
from chairlift.web.body import Message, Send
from chairlift.web.error_responses import Header, error_body, error_response_of
from chairlift.web.ignored_fields import IGNORED_HEADER
from chairlift.web.stream_keep_alive import GENERATING

SMALL_RESPONSE_BYTES = 262_144
"""Responses up to this size are translated on the event loop."""

_DONE_DATA = DONE.removeprefix(b"data: ").strip().decode()


class TranslatedResponse:
    """Translates one response. A whole one is sent at its end, a stream as it comes."""

    def __init__(
        self, send: Send, translation: Translation, path: str, request_id: str, ignored: Sequence[Header] = (), *,
        ping_interval: float = 0.0,
    ) -> None:  # fmt: skip
        """Prepare to send; `path` is the request's own path, `ignored` the header of its fields without effect.

        A stream whose events give nothing to send for `ping_interval` seconds sends what its API has for that, 0 for
        never. What the inner route sends in its own silence is translated always.
        """
        self._send, self._translation, self._path, self._id = send, translation, path, request_id
        self._ignored = ignored
        self._start: Message = {}
        self._pieces: list[bytes] = []
        self._stream: StreamTranslation | None = None
        self._events = EventReader()
        self._ping_interval, self._sent_at = ping_interval, time.monotonic()

    async def send(self, message: Message) -> None:
        """Take a message of the inner route."""
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._stream is not None:
            await self._send_events(self._stream, message)
        else:
            self._pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                await self._send_whole(b"".join(self._pieces))

    async def _begin(self, message: Message) -> None:
        headers = self._with_ignored(list(message.get("headers", ())))
        kind = next((value for name, value in headers if name == b"content-type"), b"")
        self._start = {**message, "headers": headers}
        if message["status"] == 200 and kind.startswith(b"text/event-stream"):
            self._stream = self._translation.stream()
            headers[:] = [pair for pair in headers if pair[0] not in (b"content-type", b"content-length")]
            headers.append((b"content-type", self._translation.stream_type))
            await self._send(self._start)

    async def _send_events(self, stream: StreamTranslation, message: Message) -> None:
        received = message.get("body", b"")
        body = b"".join([self._translated(stream, event) for event in self._events.push(received)])
        more = bool(message.get("more_body"))
        if not body and more:
            body = self._keep_alive(stream, received)
        if body or not more:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
            self._sent_at = time.monotonic()

    def _keep_alive(self, stream: StreamTranslation, received: bytes) -> bytes:
        """Return what is sent in place of bytes that have given nothing to send; b"" for nothing."""
        if received.startswith(b":"):  # the inner route sends a comment as a message of its own
            return stream.keep_alive(received)
        is_silent = 0 < self._ping_interval <= time.monotonic() - self._sent_at
        return stream.keep_alive(comment_block(GENERATING)) if received and is_silent else b""

    def _translated(self, stream: StreamTranslation, event: ServerSentEvent) -> bytes:
        if event.data == _DONE_DATA:
            return stream.end()
        value: Json = orjson.loads(event.data)
        if event.event == "error" or "error" in value:
            return stream.error(self._with_own_names(value["error"]))
        return stream.chunk(value)

    async def _send_whole(self, body: bytes) -> None:
        status: int = self._start["status"]
        if len(body) <= SMALL_RESPONSE_BYTES:
            status, body = self._whole(status, body)
        else:
            status, body = await asyncio.to_thread(self._whole, status, body)
        headers: list[Header] = [pair for pair in self._start["headers"] if pair[0] != b"content-length"]
        headers.append((b"content-length", b"%d" % len(body)))
        await self._send({**self._start, "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def _whole(self, status: int, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the translation of a response, or of an error that a replica has sent."""
        try:
            value: Json = orjson.loads(body)
        except orjson.JSONDecodeError:
            return status, body
        if status == 200:
            try:
                return status, orjson.dumps(self._translation.response(value))
            except InvalidRequest as invalid:
                return error_response_of(invalid).status, error_body(invalid, self._id, self._path)
        error = value.get("error") if isinstance(value, dict) else None
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            return status, body
        return status, orjson.dumps(format_error(self._path, self._with_own_names(error), status, self._id))

    def _with_own_names(self, error: Json) -> Json:
        """Return an error with the name that its field has in the request."""
        param, names = error.get("param"), self._translation.names
        if isinstance(param, str) and (own := names.own(param)) != param:
            return error | {"message": names.own_message(error["message"], param), "param": own}
        return error

    def _with_ignored(self, headers: list[Header]) -> list[Header]:
        """Name the request's fields without effect as the request does, its own and those of the inner route."""
        values = [value for name, value in self._ignored if name == IGNORED_HEADER]
        for name, value in headers:
            if name == IGNORED_HEADER:
                own = map(self._translation.names.own, value.decode("latin-1").split(", "))
                values.append(", ".join(own).encode("latin-1"))
        if not values:
            return headers
        return [*(pair for pair in headers if pair[0] != IGNORED_HEADER), (IGNORED_HEADER, b", ".join(values))]
