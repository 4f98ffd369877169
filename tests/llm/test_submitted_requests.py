"""AsyncLLM: a stream to which nothing refers is aborted, and abort() ends a stream by its id."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

from chairlift import AsyncLLM
from chairlift.llm.text_event import StreamOutput
from support_async_llm import LONG, SLOW_ENGINE, run
from support_services import fake_service, is_idle, wait_until


def test_a_stream_that_nothing_refers_to_is_aborted() -> None:
    service = fake_service(SLOW_ENGINE)

    async def scenario(llm: AsyncLLM) -> None:
        stream = llm.generate("x", LONG)
        await anext(stream)
        del stream
        await asyncio.sleep(0)
        assert (await llm.scheduler_state())["finished_by_reason"]["abort"] == 1

    run(service, scenario)


def test_a_stream_in_a_cycle_is_aborted_by_the_garbage_collector() -> None:
    service = fake_service(SLOW_ENGINE)

    async def scenario(llm: AsyncLLM) -> None:
        cycle: list[Any] = [llm.generate("x", LONG)]
        await anext(cycle[0])
        cycle.append(cycle)
        del cycle
        gc.collect()
        await asyncio.sleep(0)
        assert (await llm.scheduler_state())["finished_by_reason"]["abort"] == 1

    run(service, scenario)


def test_a_stream_that_outlives_its_event_loop_is_aborted_with_its_last_reference() -> None:
    service = fake_service(SLOW_ENGINE)
    llm = AsyncLLM.from_service(service)
    streams: list[AsyncIterator[StreamOutput]] = []

    async def scenario() -> None:
        streams.append(llm.generate("x", LONG))
        await anext(streams[0])

    asyncio.run(scenario())
    assert not is_idle(service)
    streams.clear()
    wait_until(lambda: is_idle(service))
    assert service.client.scheduler_state()["finished_by_reason"]["abort"] == 1
    llm.close()


def test_a_request_is_aborted_by_its_id_and_its_stream_says_so() -> None:
    async def scenario(llm: AsyncLLM) -> None:
        first, second, third = (llm.generate("x", LONG, request_id) for request_id in ("a", "b", "c"))
        assert (first.request_id, second.request_id) == ("a", "b")
        for stream in (first, second, third):
            await anext(stream)
        await llm.abort("a")
        await llm.abort(["b", "c", "unknown"])
        for stream in (first, second, third):
            assert [output async for output in stream][-1].finish_reason == "abort"

    run(fake_service(SLOW_ENGINE), scenario)
