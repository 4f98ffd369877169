"""inspect, fail_all: use the loop of an InlineClient from another thread, whatever state the engine is in."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from chairlift.core.errors import ChairliftError
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.engine_loop import EngineLoop

T = TypeVar("T")


class _RunOnce(Generic[T]):
    """A function that runs once, in the thread that comes first."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.result: Future[T] = Future()
        self._function = function
        self._starts = threading.Lock()

    def run(self) -> None:
        """Run the function unless another thread has begun to."""
        if not self._starts.acquire(blocking=False):
            return
        try:
            self.result.set_result(self._function())
        except Exception as error:
            self.result.set_exception(error)


def inspect(client: InlineClient, function: Callable[[EngineLoop], T]) -> T:
    """Run a function of the engine's loop between two steps; returns its result.

    It runs in the engine thread, also while that is held, and in the calling thread once the engine has ended. The
    function must not wait for the engine. Raises what it raises, and EngineDead in a fork of the engine's process.
    """
    client.creator.check()
    if threading.current_thread() is client.thread:
        return function(client.loop)
    call = _RunOnce(lambda: function(client.loop))
    if not client.post(call.run):
        client.thread.join()
        call.run()
    for hold in list(client.holds):
        hold.call(call.run)
    while True:
        try:
            return call.result.result(timeout=1.0)
        except TimeoutError:
            if not client.thread.is_alive():
                call.run()


def fail_all(client: InlineClient, error: ChairliftError) -> None:
    """End every request that the engine runs or that waits for it; their last outputs have the error."""
    inspect(client, lambda loop: client.deliver(loop.fail_all(error)))
