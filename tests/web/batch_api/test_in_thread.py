"""in_thread: the work ends before the task does."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from chairlift.web.batch_api.in_thread import in_thread


def test_results_and_errors_come_back() -> None:
    async def scenario() -> None:
        with ThreadPoolExecutor(1, "one") as executor:
            name = await in_thread(lambda: threading.current_thread().name, executor=executor)
        assert name.startswith("one") and await in_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(divmod, 7, 0)

    asyncio.run(scenario())


def test_a_cancelled_task_waits_for_the_work() -> None:
    async def scenario() -> None:
        begun, gate, has_ended = threading.Event(), threading.Event(), False

        def work() -> None:
            nonlocal has_ended
            begun.set()
            assert gate.wait(20)
            has_ended = True

        task = asyncio.create_task(in_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert has_ended

    asyncio.run(scenario())
