"""cancel_and_wait: a task that takes its first cancellation for an error ends all the same."""

import asyncio
from contextlib import suppress

import pytest

from chairlift.router.shared_state.task_cancellation import cancel_and_wait


async def _listens(num_swallowed: int) -> None:
    for _ in range(num_swallowed):
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    await asyncio.Event().wait()


async def _fails() -> None:
    raise ConnectionError("the server is gone")


@pytest.mark.parametrize("num_swallowed", [0, 1, 2])
def test_a_task_has_ended_afterwards(num_swallowed: int) -> None:
    async def run() -> None:
        task = asyncio.create_task(_listens(num_swallowed))
        await asyncio.sleep(0)
        await asyncio.wait_for(cancel_and_wait(task), 5)
        assert task.cancelled()

    asyncio.run(run())


def test_the_error_of_a_task_is_dropped() -> None:
    async def run() -> None:
        task = asyncio.create_task(_fails())
        await asyncio.sleep(0)
        await cancel_and_wait(task)
        assert task.done() and not task.cancelled()

    asyncio.run(run())
