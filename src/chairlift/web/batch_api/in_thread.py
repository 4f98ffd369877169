"""in_thread and stoppable_in_thread: run some work in a thread, and wait for its end whatever happens to the task."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from chairlift.web.batch_api.wait_for_end import wait_for_end

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run some work in a thread, and wait for its end however often the task is cancelled: it uses the folder."""
    running = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    await wait_for_end(running)
    return running.result()


async def stoppable_in_thread(work: Callable[..., T], *arguments: Any, executor: Executor) -> T:
    """Run some work that can be stopped, and wait for its end; it does not begin once the task is cancelled.

    The work has a further argument behind `arguments`, a function that returns whether the task was cancelled: it ends
    early then, and its result is not used.
    """
    stop = threading.Event()
    submitted = executor.submit(work, *arguments, stop.is_set)
    running = asyncio.wrap_future(submitted)

    def cancel() -> None:
        stop.set()
        submitted.cancel()

    await wait_for_end(running, on_cancel=cancel)
    return running.result()
