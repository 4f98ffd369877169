"""wait_for_end: what has begun has ended when it returns."""

import asyncio

import pytest

from chairlift.web.batch_api.wait_for_end import wait_for_end


def test_results_errors_and_cancellations_stay_where_they_are() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        result, error, cancelled = (loop.create_future() for _ in range(3))
        waiting = asyncio.create_task(wait_for_end(result, error, cancelled))
        await asyncio.sleep(0)
        result.set_result(1)
        error.set_exception(OSError("x"))
        await asyncio.sleep(0)
        assert not waiting.done()
        cancelled.cancel()
        await waiting
        assert result.result() == 1 and isinstance(error.exception(), OSError) and cancelled.cancelled()
        await wait_for_end()

    asyncio.run(scenario())


def test_a_cancelled_task_waits_all_the_same() -> None:
    async def scenario() -> None:
        future, calls = asyncio.get_running_loop().create_future(), list[None]()
        waiting = asyncio.create_task(wait_for_end(future, on_cancel=lambda: calls.append(None)))
        for number in range(1, 4):
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.sleep(0)
            assert not waiting.done() and len(calls) == number
        future.set_result(None)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())
