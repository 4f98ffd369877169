"""StartThrottle: starts a bounded number of requests per loop iteration, in order, and a single one at once."""

import asyncio
from collections import Counter
from functools import partial

from chairlift.web.start_throttle import STARTS_PER_ITERATION, StartThrottle


def test_a_crowd_begins_in_order_a_few_in_each_turn() -> None:
    async def main() -> list[tuple[int, int]]:
        gate, turn, begun = StartThrottle(), 0, list[tuple[int, int]]()
        for number in range(3 * STARTS_PER_ITERATION + 1):
            gate.enter(lambda number=number: begun.append((number, turn)))  # type: ignore[misc]
        while len(begun) < 3 * STARTS_PER_ITERATION + 1:
            turn += 1
            await asyncio.sleep(0)
            assert turn < 100
        return begun

    begun = asyncio.run(main())
    assert [number for number, _ in begun] == list(range(3 * STARTS_PER_ITERATION + 1))
    assert max(Counter(turn for _, turn in begun).values()) == STARTS_PER_ITERATION


def test_who_comes_alone_begins_at_once_and_nothing_turns_for_ever() -> None:
    async def main() -> None:
        gate, begun = StartThrottle(), list[int]()
        for number in range(5 * STARTS_PER_ITERATION):
            gate.enter(partial(begun.append, number))
            assert begun[-1] == number
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not gate._is_scheduled

    asyncio.run(main())


def test_who_comes_while_a_crowd_waits_stands_behind_it() -> None:
    async def main() -> None:
        gate, begun = StartThrottle(), list[str]()
        for _ in range(STARTS_PER_ITERATION + 2):
            gate.enter(lambda: begun.append("crowd"))
        gate.enter(lambda: gate.enter(lambda: begun.append("last")))
        while "last" not in begun:
            await asyncio.sleep(0)
        assert begun == ["crowd"] * (STARTS_PER_ITERATION + 2) + ["last"]

    asyncio.run(asyncio.wait_for(main(), 20))
