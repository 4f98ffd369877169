"""cancel_and_wait: ends a task that may take a cancellation for an error of a connection."""

import asyncio
from typing import Any

AGAIN_SECONDS = 0.1
"""Seconds between two cancellations of one task."""


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended; its result or error is dropped.

    The Redis library reports a cancellation that comes while it connects as an error of the connection now and then. A
    task that goes on after such errors would never end.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=AGAIN_SECONDS)
    if not task.cancelled():
        task.exception()
