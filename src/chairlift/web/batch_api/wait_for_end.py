"""wait_for_end: waits until tasks and futures have ended, however often the waiting task is cancelled."""

import asyncio
from collections.abc import Callable
from typing import Any


async def wait_for_end(*futures: "asyncio.Future[Any]", on_cancel: Callable[[], None] = lambda: None) -> None:
    """Return when all have ended, with a result, an error or cancelled, and what that is stays in them.

    `on_cancel` is called each time the waiting task is cancelled. Raises CancelledError at the end then.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := [each for each in futures if not each.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    for each in futures:
        if not each.cancelled():
            each.exception()  # else asyncio logs that it was never looked at
    if cancelled is not None:
        raise cancelled
