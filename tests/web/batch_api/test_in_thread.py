"""in_thread and stoppable_in_thread: the work ends before the task does."""

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from chairlift.web.batch_api.in_thread import in_thread, stoppable_in_thread


def test_results_and_errors_come_back() -> None:
    async def scenario() -> None:
        with ThreadPoolExecutor(1, "one") as executor:
            name, is_stopped = await stoppable_in_thread(
                lambda stopped: (threading.current_thread().name, stopped()), executor=executor
            )
            with pytest.raises(ZeroDivisionError):
                await stoppable_in_thread(lambda number, _: number // 0, 7, executor=executor)
        assert name.startswith("one") and not is_stopped and await in_thread(divmod, 7, 2) == (3, 1)
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


def test_work_that_has_begun_is_stopped_and_other_work_does_not_begin(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        begun, calls = threading.Event(), list[int]()

        def work(number: int, is_stopped: Callable[[], bool]) -> None:
            calls.append(number)
            begun.set()
            while not is_stopped():
                pass
            raise OSError("an error that has no reader")

        with ThreadPoolExecutor(1) as executor:
            tasks = [asyncio.create_task(stoppable_in_thread(work, number, executor=executor)) for number in range(3)]
            while not begun.is_set():
                await asyncio.sleep(0.001)
            for task in reversed(tasks):
                task.cancel()
            assert [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)] == [
                asyncio.CancelledError
            ] * 3
        assert calls == [0]

    asyncio.run(scenario())
    gc.collect()
    assert not caplog.records
