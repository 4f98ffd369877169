"""in_thread: runs some work in a thread, and waits for its end whatever happens to the task."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *arguments: Any, executor: Executor | None = None) -> T:
    """Run some work in a thread, and wait for its end also when the task is cancelled: it uses the folder."""
    running = asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
