"""StreamWriter: sends the events of a streamed response as its outputs come."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from chairlift.core.errors import ChairliftError
from chairlift.llm.text_event import TextEvent
from chairlift.server.openai.output.generation_tracker import Batch, GenerationTracker
from chairlift.web.body import ClientGone
from chairlift.web.error_responses import INTERNAL_ERROR, Header, error_response_of, stream_error_event
from chairlift.web.stream_keep_alive import StreamKeepAlive

log = logging.getLogger(__name__)

RenderEvent = Callable[[int, TextEvent], bytes]


class StreamWriter:
    """Writes a streamed response; itself sends nothing before the first output, so early errors get a status."""

    def __init__(
        self, stream: StreamKeepAlive, headers: Sequence[Header], render: RenderEvent, tracker: GenerationTracker
    ) -> None:  # fmt: skip
        """Prepare the writer; `render` returns the bytes of one text event, empty where there are none yet."""
        self._stream, self._headers, self._render, self._tracker = stream, headers, render, tracker

    async def run(
        self, batches: AsyncGenerator[Batch, None], request_id: str, end: Callable[[], Awaitable[bytes]]
    ) -> Exception | None:  # fmt: skip
        """Send outputs as they come, then the bytes that `end` returns.

        Reports an error after the beginning of the stream in the stream, and returns it.
        """
        failure: ChairliftError | None = None
        try:
            async for batch in batches:
                events, failure = self._tracker.take(batch)
                if failure is not None and not self._stream.has_started:
                    raise failure
                await self._write(b"".join([self._render(number, event) for number, event in events]))
                if failure is not None:
                    raise failure
            last = await end()
        except (ClientGone, asyncio.CancelledError):
            raise
        except Exception as error:
            if not self._stream.has_started:
                raise
            await self._write(stream_error_event(error, request_id), more=False)
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
        if not self._stream.has_started:
            await self._stream.send({"type": "http.response.start", "status": 200, "headers": [*self._headers]})
        await self._stream.send({"type": "http.response.body", "body": body, "more_body": more})
