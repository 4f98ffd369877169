"""OutputDispatcher: readers are woken in batches, cancelled readers block no others, deliveries are spaced."""

import asyncio
from collections import Counter

from chairlift.core.engine_output import EngineOutput
from chairlift.llm.output_dispatcher import WAKEUPS_PER_ITERATION, OutputDispatcher, OutputInbox


def test_readers_are_woken_in_batches_and_none_is_forgotten() -> None:
    """The event loop runs other tasks between two batches, so a step with many readers blocks no task."""
    count = 4 * WAKEUPS_PER_ITERATION + 3
    iterations: list[int] = []

    async def scenario() -> list[int]:
        loop = asyncio.get_running_loop()
        dispatcher = OutputDispatcher(loop, lambda: 0.0)
        inboxes = [OutputInbox(loop) for _ in range(count)]
        for number, inbox in enumerate(inboxes):
            dispatcher.open(str(number), inbox)
        iteration = 0

        async def read_output(inbox: OutputInbox) -> int:
            (output,) = await inbox.take(at_once=True)
            iterations.append(iteration)
            return int(output.request_id)

        readers = [asyncio.create_task(read_output(inbox)) for inbox in inboxes]
        await asyncio.sleep(0)
        dispatcher.sink([EngineOutput(str(number), (7,)) for number in range(count)])
        while not all(reader.done() for reader in readers):
            await asyncio.sleep(0)
            iteration += 1
            assert iteration < 100
        return [reader.result() for reader in readers]

    assert asyncio.run(scenario()) == list(range(count))
    assert len(set(iterations)) == 5 and max(Counter(iterations).values()) == WAKEUPS_PER_ITERATION


def test_a_cancelled_reader_does_not_block_the_others() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        dispatcher = OutputDispatcher(loop, lambda: 0.0)
        inboxes = [OutputInbox(loop) for _ in range(3 * WAKEUPS_PER_ITERATION)]
        for number, inbox in enumerate(inboxes):
            dispatcher.open(str(number), inbox)
        readers = [asyncio.create_task(inbox.take(at_once=True)) for inbox in inboxes]
        await asyncio.sleep(0)
        for number in range(0, len(inboxes), 2):
            readers[number].cancel()
        dispatcher.sink([EngineOutput(str(number), (7,)) for number in range(len(inboxes))])
        results = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 20)
        assert all(isinstance(each, list) for each in results[1::2])
        assert not dispatcher._readers_to_wake and not dispatcher._is_waking

    asyncio.run(scenario())


def test_deliveries_are_spaced_and_outputs_in_between_are_merged() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        pauses = [0.2, 0.0, 0.0]  # one for each delivery; an early check would take a second one
        dispatcher, inbox = OutputDispatcher(loop, lambda: pauses.pop(0)), OutputInbox(loop)
        dispatcher.open("a", inbox)

        async def next_output() -> tuple[tuple[int, ...], float]:
            (output,) = await inbox.take(at_once=True)
            return output.token_ids, loop.time()

        dispatcher.sink([EngineOutput("a", (1,))])
        first, start = await next_output()
        for token in (2, 3, 4):
            dispatcher.sink([EngineOutput("a", (token,))])
            await asyncio.sleep(0.01)
        second, end = await next_output()
        dispatcher.sink([EngineOutput("a", (5,))])
        third, _ = await next_output()
        assert (first, second, third) == ((1,), (2, 3, 4), (5,))
        assert end - start >= 0.19 and pauses == []

    asyncio.run(asyncio.wait_for(scenario(), 20))
