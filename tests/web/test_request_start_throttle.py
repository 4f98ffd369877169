"""StartThrottle: starts a bounded number of requests per loop iteration, in order."""

import asyncio
from collections import Counter
from functools import partial

from chairlift.web.request_start_throttle import STARTS_PER_ITERATION, StartThrottle


def test_a_crowd_begins_in_order_a_few_in_each_turn() -> None:
    async def scenario() -> list[tuple[int, int]]:
        throttle, iteration, started = StartThrottle(), 0, list[tuple[int, int]]()
        for number in range(3 * STARTS_PER_ITERATION + 1):
            throttle.enter(lambda number=number: started.append((number, iteration)))  # type: ignore[misc]
        while len(started) < 3 * STARTS_PER_ITERATION + 1:
            iteration += 1
            await asyncio.sleep(0)
            assert iteration < 100
        return started

    started = asyncio.run(scenario())
    assert [number for number, _ in started] == list(range(3 * STARTS_PER_ITERATION + 1))
    assert max(Counter(iteration for _, iteration in started).values()) == STARTS_PER_ITERATION


def test_who_comes_alone_begins_at_once_and_nothing_turns_for_ever() -> None:
    async def scenario() -> None:
        throttle, started = StartThrottle(), list[int]()
        for number in range(5 * STARTS_PER_ITERATION):
            throttle.enter(partial(started.append, number))
            assert started[-1] == number
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not throttle._is_scheduled

    asyncio.run(scenario())


def test_who_comes_while_a_crowd_waits_stands_behind_it() -> None:
    async def scenario() -> None:
        throttle, started = StartThrottle(), list[str]()
        for _ in range(STARTS_PER_ITERATION + 2):
            throttle.enter(lambda: started.append("first"))
        throttle.enter(lambda: throttle.enter(lambda: started.append("last")))
        while "last" not in started:
            await asyncio.sleep(0)
        assert started == ["first"] * (STARTS_PER_ITERATION + 2) + ["last"]

    asyncio.run(asyncio.wait_for(scenario(), 20))
