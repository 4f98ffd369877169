"""RequestStream: the outputs of one request as an asynchronous iterator that aborts the request when it is left."""

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from chairlift.core.request_output_kind import RequestOutputKind
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.submitted_requests import SubmittedRequests
from chairlift.llm.text_event import ChoiceHistory, StreamOutput, TextEvent


class RequestStream:
    """The outputs of one request, submitted when the first one is awaited; an asynchronous iterator.

    Leaving an `async for` loop by `break`, `return` or an exception aborts the request, also when a variable holds the
    stream: the loop has an iterator of its own (`__aiter__`), whose end is noticed by its finalizer. So do `aclose()`,
    the end of an `async with`, a cancelled `__anext__`, and the end of the last reference to the stream.
    After that the stream has no further outputs. Not for several tasks at once.
    """

    def __init__(
        self, processor: OutputProcessor, prepare_requests: Callable[[Sequence[OutputProcessor]], SubmittedRequests]
    ) -> None:  # fmt: skip
        """Prepare the stream of one request; `prepare_requests` is called in the event loop that reads it."""
        self._processor, self._prepare_requests = processor, prepare_requests
        self._kind = processor.request.params.output_kind
        self._requests: SubmittedRequests | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._histories = [ChoiceHistory() for _ in range(processor.request.params.num_choices)]
        self._prompt_token_ids = list(processor.request.prompt_token_ids)
        self._unread: deque[StreamOutput] = deque()
        self._is_closed = False

    @property
    def request_id(self) -> str:
        """Id of the request, for `AsyncLLM.abort`."""
        return self._processor.request.request_id

    def __aiter__(self) -> "_LoopIterator":
        return _LoopIterator(self)

    async def __anext__(self) -> StreamOutput:
        """Return the next output; raises StopAsyncIteration after the final one or after the stream was closed."""
        if self._is_closed:
            raise StopAsyncIteration
        try:
            if self._requests is None:
                self._loop = asyncio.get_running_loop()
                self._requests = self._prepare_requests([self._processor])
                self._requests.submit()
            while not self._unread and self._requests:
                self._unread += self._outputs(await self._requests.next_batch())
        except BaseException:
            self._close()
            raise
        if self._is_closed or not self._unread:
            raise StopAsyncIteration
        return self._unread.popleft()

    async def aclose(self) -> None:
        """Abort the request unless it has ended. May be called more than once."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __del__(self) -> None:
        self.close_soon()

    def close_soon(self) -> None:
        """Abort the request in the next iteration of its event loop; for finalizers, which may run anywhere.

        A finalizer can interrupt code that holds one of the engine's locks, so it must not take them itself. At the end
        of the interpreter the engine is closed already, and a thread that is started then never runs.
        """
        self._is_closed = True
        if self._loop is None or not self._requests or sys.is_finalizing():
            return
        try:
            self._loop.call_soon_threadsafe(self._requests.abort)
        except RuntimeError:  # the event loop is closed
            with suppress(RuntimeError):  # the interpreter ends
                threading.Thread(target=self._requests.abort, daemon=True).start()

    def _close(self) -> None:
        self._is_closed = True
        if self._requests is not None:
            self._requests.abort()

    def _outputs(self, batch: list[tuple[int, TextEvent]]) -> list[StreamOutput]:
        """Return the events as the outputs that the request's output_kind asks for."""
        outputs = [self._output(event) for _, event in batch]
        if self._kind is not RequestOutputKind.FINAL_ONLY:
            return outputs
        return [replace(each, choices=self._processor.result().outputs) for each in outputs if each.is_final]

    def _output(self, event: TextEvent) -> StreamOutput:
        history = self._histories[event.index]
        history.parts.append(event.delta)
        history.token_ids += event.token_ids
        history.logprobs += event.logprobs
        processor = self._processor
        return StreamOutput(
            event.request_id, event.delta, event.token_ids, event.logprobs, event.finish_reason, event.stop_reason,
            event.error, event.usage, event.timeline, event.seed, event.index, event.prompt_logprobs,
            processor.prompt, self._prompt_token_ids,
            None if self._kind is RequestOutputKind.DELTA else history,
            (len(history.parts), len(history.token_ids), len(history.logprobs)), processor.has_logprobs,
            token_pieces=processor.token_pieces,
        )  # fmt: skip


class _LoopIterator:
    """The iterator of one `async for` loop over a stream; its finalizer runs when the loop is left."""

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[StreamOutput]:
        return self._stream.__anext__()

    def __del__(self) -> None:
        self._stream.close_soon()
