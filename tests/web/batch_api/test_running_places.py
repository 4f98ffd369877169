"""RunningPlaces: batches run in the order of their creation, few of one tenant, and each tenant has one."""

import asyncio

import pytest

from chairlift.web.batch_api.running_places import RunningPlaces


class Takers:
    """Batches that wait for a place; `running` names those that have one."""

    def __init__(self) -> None:
        self.places, self.running = RunningPlaces(3, 2), list[str]()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    async def take(self, *names: str) -> list[str]:
        for name in names:
            self.tasks[name] = asyncio.create_task(self._take(name))
        return await self.settled()

    async def release(self, *names: str) -> list[str]:
        for name in names:
            self.ends[name].set()
        return await self.settled()

    async def settled(self) -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return self.running

    async def _take(self, name: str) -> None:
        end = self.ends[name] = asyncio.Event()
        async with self.places.place(name[0], int(name[1:])):
            self.running.append(name)
            await end.wait()
            self.running.remove(name)


def test_tenants_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        takers = Takers()
        assert await takers.take("a1", "a2", "a3", "b1") == ["a1", "a2", "b1"]
        assert await takers.take("b2", "c1") == ["a1", "a2", "b1", "c1"], "each tenant has one besides the limit of all"
        assert await takers.release("c1") == ["a1", "a2", "b1"]
        assert await takers.release("a2") == ["a1", "b1", "b2"]
        assert await takers.release("a1") == ["b1", "b2", "a3"]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_granted", [False, True])
def test_a_batch_that_is_cancelled_while_it_waits_takes_no_place(is_granted: bool) -> None:
    async def scenario() -> None:
        takers = Takers()
        assert await takers.take("a1", "a2", "a3", "a4") == ["a1", "a2"]
        if is_granted:  # at the same moment
            takers.ends["a1"].set()
            await asyncio.sleep(0)  # it gives its place to a3, which does not run yet
        takers.tasks["a3"].cancel()
        await takers.settled()
        assert await takers.release("a2") == (["a4"] if is_granted else ["a1", "a4"])
        assert (await takers.take("a5"))[-1] == ("a5" if is_granted else "a4")

    asyncio.run(scenario())


def test_what_gives_its_place_back_waits_in_the_order_of_the_numbers() -> None:
    async def scenario() -> None:
        takers = Takers()
        assert await takers.take("a1", "a5", "a7", "a9") == ["a1", "a5"]
        assert await takers.take("a2") == ["a1", "a5"]
        assert await takers.release("a5") == ["a1", "a2"]
        assert await takers.release("a1", "a2") == ["a7", "a9"]

    asyncio.run(scenario())
