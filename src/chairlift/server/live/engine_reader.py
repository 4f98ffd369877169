"""EngineReader: asks an engine about its state, in one thread, and does not wait for an engine that hangs."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from chairlift.core.errors import ChairliftError, EngineDead
from chairlift.engine.client.base import EngineClient

ENGINE_SECONDS = 2.0
"""Seconds to wait for an engine, which answers between two steps; a step may take longer, and a hanging one never
ends."""

CHECK_SECONDS_PER_BLOCK = 5e-6
"""Seconds that the check of a block's consistency may take; it takes 1 to 2 microseconds."""

T = TypeVar("T")


class EngineReader:
    """Asks one engine. Belongs to the event loop.

    A question that the engine has not answered stays open, and the next one of its name waits for the same answer.
    So an engine that hangs holds one thread, however often it is asked.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chairlift-engine-reader")
        self._questions: dict[str, tuple[asyncio.Future[Any], float]] = {}

    async def ask(self, name: str, question: Callable[[], T], seconds: float | None = None) -> T:
        """Return the answer to the question of this name; wait `seconds`, which are ENGINE_SECONDS by default.

        The time counts from the first wait for the answer.

        Raises:
            EngineDead: the engine has not answered.
            ChairliftError: what `question` raises.
        """
        loop = asyncio.get_running_loop()
        seconds = ENGINE_SECONDS if seconds is None else seconds
        answer, asked_at = self._questions.get(name, (None, 0.0))
        if answer is None or answer.done():
            answer, asked_at = loop.run_in_executor(self._thread, question), loop.time()
            answer.add_done_callback(_retrieve_error)
            self._questions[name] = answer, asked_at
        done, _ = await asyncio.wait({answer}, timeout=max(0.0, asked_at + seconds - loop.time()))
        if not done:
            raise EngineDead(f"the engine did not answer within {seconds:g} s: it computes a long step, or hangs")
        result: T = answer.result()
        return result

    async def read_state(self, client: EngineClient, max_checked_blocks: float) -> dict[str, Any]:
        """Return `scheduler`, `cache` and `integrity_errors`, or as much of them as the engine answers, and `error`.

        The consistency of a cache with more blocks is not checked; `integrity_skipped` says so.
        """
        state: dict[str, Any] = {}
        try:
            state["scheduler"] = await self.ask("scheduler", client.scheduler_state)
            state["cache"] = cache = await self.ask("cache", client.cache_state)
            if (num_blocks := cache["total_blocks"]) <= max_checked_blocks:
                seconds = ENGINE_SECONDS + num_blocks * CHECK_SECONDS_PER_BLOCK
                state["integrity_errors"] = await self.ask("check", client.check_integrity, seconds)
            else:
                state["integrity_skipped"] = f"the cache has {num_blocks} blocks, the limit is {max_checked_blocks}"
        except ChairliftError as error:
            state["error"] = error.message
        return state

    def close(self) -> None:
        """Ask nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _retrieve_error(answer: "asyncio.Future[Any]") -> None:
    """Retrieve an error that nothing waits for any more, which asyncio would log."""
    if not answer.cancelled():
        answer.exception()
