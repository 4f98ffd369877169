"""run_batch: submits requests as fast as the engine's waiting queue accepts them and yields their events."""

import time
from collections import deque
from collections.abc import Generator, Sequence
from queue import SimpleQueue

from chairlift.core.engine_output import EngineOutput
from chairlift.core.errors import EngineDead, QueueFull
from chairlift.engine.client.base import EngineClient
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_event import TextEvent

FULL_QUEUE_PAUSE = 0.01  # seconds before a request is submitted again after QueueFull

Events = Generator[tuple[OutputProcessor, TextEvent], None, None]


def run_batch(client: EngineClient, processors: Sequence[OutputProcessor], window: int) -> Events:
    """Run requests together; yield (processor, event) until each has its final event and output.

    At most `window` submitted requests are without output, so that the engine's waiting queue has room for them unless
    it also holds preempted requests; a request rejected with QueueFull is submitted again. Closing the generator, or an
    exception in it (Ctrl-C), aborts the open requests; a caller that stops its loop early must close the generator.
    Raises EngineDead when the engine accepts no request at all; when it fails later, its requests end with that error.
    """
    outputs: SimpleQueue[list[EngineOutput]] = SimpleQueue()
    sink = outputs.put
    waiting = deque(processors)
    open_requests: dict[str, OutputProcessor] = {}
    without_output: set[str] = set()
    try:
        while waiting or open_requests:
            while waiting and len(without_output) < window:
                processor = waiting.popleft()
                open_requests[processor.request.request_id] = processor
                without_output.add(processor.request.request_id)
                try:
                    client.submit(processor.validated, sink)
                except EngineDead as error:
                    if len(waiting) == len(processors) - 1:
                        raise
                    outputs.put([EngineOutput.failed(processor.request, error)])
                forward_aborts(client, processor)
            for output in outputs.get():
                processor = open_requests[output.request_id]
                without_output.discard(output.request_id)
                if output.is_final:
                    del open_requests[output.request_id]
                if isinstance(output.error, QueueFull):
                    time.sleep(FULL_QUEUE_PAUSE)
                    waiting.appendleft(processor)
                    continue
                events = processor.process(output)
                if not output.is_final:
                    forward_aborts(client, processor)
                for event in events:
                    yield processor, event
    finally:
        for request_id in open_requests:
            client.abort(request_id)


def forward_aborts(client: EngineClient, processor: OutputProcessor) -> None:
    """Abort in the engine the choices that ended in the text service, or the request if all did."""
    request_id = processor.request.request_id
    if processor.is_finished:
        client.abort(request_id)
    else:
        for index in processor.pending_aborts:
            client.abort(request_id, index)
    processor.pending_aborts.clear()
