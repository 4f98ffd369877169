"""StreamWriter: sends the events of a streamed response as its outputs come."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import orjson

from chairlift.core.errors import ChairliftError
from chairlift.llm.text_event import TextEvent
from chairlift.protocol.sse import named_event
from chairlift.server.openai.output.generation_tracker import Batch, GenerationTracker
from chairlift.web.body import ClientGone, Send
from chairlift.web.error_responses import INTERNAL_ERROR, Header, error_object, error_response_of, is_retryable

log = logging.getLogger(__name__)

RenderEvent = Callable[[int, TextEvent], bytes]

STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def error_event(error: Exception, request_id: str) -> bytes:
    """Return the event that ends a stream with an error; `retryable` says whether another replica may help."""
    body = error_object(error, request_id) | {"retryable": is_retryable(error)}
    return named_event(b"error", orjson.dumps({"error": body}))


class StreamWriter:
    """Writes a streamed response; sends nothing before the first output, so early errors get a status."""

    def __init__(self, send: Send, headers: Sequence[Header], render: RenderEvent, tracker: GenerationTracker) -> None:
        """Prepare the writer; `render` returns the bytes of one text event, empty where there are none yet."""
        self._send = send
        self._headers = headers
        self._render = render
        self._tracker = tracker
        self._has_started = False

    async def run(
        self, batches: AsyncGenerator[Batch, None], request_id: str, end: Callable[[], Awaitable[bytes]]
    ) -> Exception | None:  # fmt: skip
        """Send outputs as they come, then the bytes that `end` returns.

        Reports an error after the first output in the stream, and returns it.
        """
        failure: ChairliftError | None = None
        try:
            async for batch in batches:
                events, failure = self._tracker.take(batch)
                if failure is not None and not self._has_started:
                    raise failure
                await self._write(b"".join([self._render(number, event) for number, event in events]))
                if failure is not None:
                    raise failure
            last = await end()
        except (ClientGone, asyncio.CancelledError):
            raise
        except Exception as error:
            if not self._has_started:
                raise
            await self._write(error_event(error, request_id), more=False)
            if error_response_of(error) is INTERNAL_ERROR:
                log.error("the stream failed", exc_info=error)
            else:
                log.info("the stream ended: %s", error)
            return error
        finally:
            failure = None  # as in Generation._collect
        await self._write(last, more=False)
        return None

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        if not body and more:
            return
        if not self._has_started:
            self._has_started = True
            headers = [*STREAM_HEADERS, *self._headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
