"""pump: feeds requests to an engine as fast as its line takes them, and yields what becomes of each."""

import time
from collections import deque
from collections.abc import Generator, Sequence
from queue import SimpleQueue

from chairlift.core.errors import EngineDead, QueueFull
from chairlift.core.request import EngineOutput
from chairlift.engine.client.base import EngineClient
from chairlift.llm.output_processor import Assembler
from chairlift.llm.outputs import TextEvent

FULL_QUEUE_PAUSE = 0.01  # seconds before a request that found the line full of others' is tried again

Events = Generator[tuple[Assembler, TextEvent], None, None]


def pump(client: EngineClient, assemblers: Sequence[Assembler], window: int) -> Events:
    """Run requests together; yields (request, event) until each has had its last event and the engine has let go.

    At most `window` of them have been sent and not heard of, so that the engine's line has room for them unless riders
    are sent back to it; who is refused then is sent again. Closing the generator, and an exception in it (Ctrl-C),
    abort those that are open; who leaves a loop over it early must close it. Raises EngineDead when the engine takes no
    request at all; when it dies later, its requests end with that error.
    """
    news: SimpleQueue[list[EngineOutput]] = SimpleQueue()
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
                    news.put([EngineOutput.failed(assembler.request, error)])
                tell_aborts(client, assembler)
            for output in news.get():
                assembler = riding[output.request_id]
                silent.discard(output.request_id)
                if output.is_final:
                    del riding[output.request_id]
                if isinstance(output.error, QueueFull):
                    time.sleep(FULL_QUEUE_PAUSE)
                    line.appendleft(assembler)
                    continue
                events = assembler.take(output)
                if not output.is_final:
                    tell_aborts(client, assembler)
                for event in events:
                    yield assembler, event
    finally:
        for request_id in riding:
            client.abort(request_id)


def tell_aborts(client: EngineClient, assembler: Assembler) -> None:
    """Tell the engine which choices have ended without it; the whole request, as often as asked, when all have."""
    request_id = assembler.request.request_id
    if assembler.is_finished:
        client.abort(request_id)
    else:
        for index in assembler.aborts:
            client.abort(request_id, index)
    assembler.aborts.clear()
