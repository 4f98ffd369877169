"""in_thread: runs some work in a thread, and waits for its end whatever happens to the task."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *arguments: Any, executor: Executor | None = None) -> T:
    """Run some work in a thread, and wait for its end however often the task is cancelled: it uses the folder."""
    running = asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return running.result()
