"""pump: feeds requests to an engine as fast as its line takes them, and yields what becomes of each."""

import time
from collections import deque
from collections.abc import Generator, Sequence
from queue import SimpleQueue

from chairlift.core.errors import EngineDead, QueueFull
from chairlift.core.request import FinishReason, Output
from chairlift.engine.client import EngineClient
from chairlift.llm.assembler import Assembler
from chairlift.llm.output import TextEvent

FULL_QUEUE_PAUSE = 0.01  # seconds before a request that found the line full of others' is tried again

Events = Generator[tuple[Assembler, TextEvent], None, None]


def pump(client: EngineClient, assemblers: Sequence[Assembler], window: int) -> Events:
    """Run requests together; yields (request, event) until each has had its last event and the engine has let go.

    At most `window` of them have been sent and not heard of, so that the engine's line has room for them unless riders
    are sent back to it; who is refused then is sent again. Closing the generator, and an exception in it (Ctrl-C),
    abort those that are open; who leaves a loop over it early must close it. Raises EngineDead when the engine takes no
    request at all; when it dies later, its requests end with that error.
    """
    news: SimpleQueue[list[Output]] = SimpleQueue()
    sink = news.put
    line = deque(assemblers)
    riding: dict[str, Assembler] = {}
    silent: set[str] = set()
    try:
        while line or riding:
            while line and len(silent) < window:
                assembler = line.popleft()
                riding[assembler.request.request_id] = assembler
                silent.add(assembler.request.request_id)
                try:
                    client.submit(assembler.request, sink)
                except EngineDead as error:
                    if len(line) == len(assemblers) - 1:
                        raise
                    news.put([Output(assembler.request.request_id, finish_reason=FinishReason.ERROR, error=error)])
            for output in news.get():
                assembler = riding[output.request_id]
                silent.discard(output.request_id)
                if output.finish_reason is not None:
                    del riding[output.request_id]
                if isinstance(output.error, QueueFull):
                    time.sleep(FULL_QUEUE_PAUSE)
                    line.appendleft(assembler)
                    continue
                event = assembler.take(output)
                if assembler.must_abort:
                    assembler.must_abort = False
                    client.abort(output.request_id)
                if event is not None:
                    yield assembler, event
    finally:
        for request_id in riding:
            client.abort(request_id)
