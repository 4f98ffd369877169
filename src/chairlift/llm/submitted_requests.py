"""SubmittedRequests: the requests of one stream that the engine has."""

import asyncio
from collections.abc import Sequence

from chairlift.engine.client.base import EngineClient
from chairlift.llm.batch_run import forward_aborts
from chairlift.llm.output_dispatcher import OutputDispatcher, OutputInbox
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_event import TextEvent


class SubmittedRequests:
    """Requests that one reader has submitted and that have not ended. Belongs to one event loop."""

    def __init__(
        self, client: EngineClient, dispatcher: OutputDispatcher, processors: Sequence[OutputProcessor], *,
        at_once: bool,
    ) -> None:  # fmt: skip
        """Prepare the reader; nothing is queued before submit(). For `at_once` see AsyncLLM.run."""
        self._client, self._dispatcher, self._processors = client, dispatcher, processors
        self._inbox = OutputInbox(asyncio.get_running_loop())
        self._numbers: dict[str, int] = {}
        self._at_once = at_once or any(each.request.params.stop for each in processors)  # the engine cannot see stops
        self._is_first = True

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def submit(self) -> None:
        """Queue the requests. Raises the engine's immediate rejection."""
        for number, processor in enumerate(self._processors):
            request_id = processor.request.request_id
            self._client.submit(processor.validated, self._dispatcher.sink)
            self._numbers[request_id] = number
            self._dispatcher.open(request_id, self._inbox)
            forward_aborts(self._client, processor)

    async def next_batch(self) -> list[tuple[int, TextEvent]]:
        """Wait for outputs; return their events as (index of the processor, event)."""
        batch: list[tuple[int, TextEvent]] = []
        outputs = await self._inbox.take(at_once=self._at_once or self._is_first)
        self._is_first = False
        for output in outputs:
            if (number := self._numbers.get(output.request_id, -1)) < 0:
                continue
            processor = self._processors[number]
            batch += [(number, event) for event in processor.process(output)]
            if output.is_final:
                self._remove(output.request_id)
            elif processor.is_finished:
                self._remove(output.request_id)
                self._client.abort(output.request_id)
            elif processor.pending_aborts:
                forward_aborts(self._client, processor)
        return batch

    def abort(self) -> None:
        """Abort what is open. May be called more than once."""
        for request_id in list(self._numbers):
            self._remove(request_id)
            self._client.abort(request_id)

    def _remove(self, request_id: str) -> None:
        del self._numbers[request_id]
        self._dispatcher.close(request_id)
