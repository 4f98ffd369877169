"""ResultQueue: delivers outputs of requests to their readers: by id, in order of arrival, or to a callback.

deliver(outputs) ──► callback of the request, in its event loop       one call for each loop, however many outputs
                 └─► queue ──► get()           the oldest output
                               get(request_id) the oldest output of this request; others stay where they are

A reader that waits for one request is woken by outputs of this request only, whatever else the engine's steps make.
"""

import asyncio
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from chairlift.llm.transformers_compat.generation_output import GenerationOutput

ResultHandler = Callable[[GenerationOutput], object]

CHECK_SECONDS = 1.0
"""How often a waiting reader checks whether an output can still come: an idle engine ends without an output."""


class ResultQueue:
    """A queue of outputs with the methods of queue.Queue for its readers. Thread-safe."""

    def __init__(self, lock: "threading.RLock | None" = None) -> None:
        """Make an empty queue; `lock` is a reentrant lock to share."""
        self._lock = lock or threading.RLock()
        self._readers: dict[str | None, list[threading.Condition]] = {}  # those that wait, by request; None: any
        self._unread: OrderedDict[int, GenerationOutput] = OrderedDict()  # by number of arrival
        self._numbers: dict[str, deque[int]] = {}
        self._handlers: dict[str, tuple[ResultHandler, asyncio.AbstractEventLoop]] = {}
        self._arrivals = 0

    # -- producers -------------------------------------------------------------------------------------------------

    def deliver(self, outputs: Iterable[GenerationOutput]) -> None:
        """Pass outputs to their handlers, or queue them. An event loop that is closed loses its handlers."""
        with self._lock:
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[ResultHandler, GenerationOutput]]] = {}
            for output in outputs:
                handler = self._handlers.get(output.request_id)
                self._wake(output.request_id)
                if handler is None:
                    self._put(output)
                    continue
                by_loop.setdefault(handler[1], []).append((handler[0], output))
                if output.is_finished():
                    del self._handlers[output.request_id]
            for loop, calls in by_loop.items():
                self._call(loop, calls)

    def put(self, output: GenerationOutput) -> None:
        """Queue an output again, as readers of transformers' queue do that got another request's."""
        self.deliver([output])

    def notify(self) -> None:
        """Let all waiting readers check whether an output can still come."""
        with self._lock:
            for request_id in self._readers:
                self._wake(request_id)

    def _wake(self, request_id: str | None) -> None:
        """Wake the readers that wait for a request. Each looks for its output again before it gives up or waits on."""
        for reader in self._readers.get(request_id, ()):
            reader.notify()

    def _put(self, output: GenerationOutput) -> None:
        self._unread[self._arrivals] = output
        self._numbers.setdefault(output.request_id, deque()).append(self._arrivals)
        self._arrivals += 1
        self._wake(None)

    def _call(self, loop: asyncio.AbstractEventLoop, calls: Sequence[tuple[ResultHandler, GenerationOutput]]) -> None:
        try:
            loop.call_soon_threadsafe(_run, calls)
        except RuntimeError:  # the loop is closed
            for _, output in calls:
                self._handlers.pop(output.request_id, None)
                self._put(output)

    @property
    def output_queue(self) -> "ResultQueue":
        """The queue itself, which is a part of transformers' router of outputs."""
        return self

    # -- readers ---------------------------------------------------------------------------------------------------

    def register(self, request_id: str, handler: ResultHandler, loop: asyncio.AbstractEventLoop) -> None:
        """Pass outputs of a request to a handler in an event loop, those that are queued already first."""
        with self._lock:
            unread = [self._unread.pop(number) for number in self._numbers.pop(request_id, ())]
            if not (unread and unread[-1].is_finished()):
                self._handlers[request_id] = (handler, loop)
            if unread:
                self._call(loop, [(handler, output) for output in unread])

    def unregister(self, request_id: str) -> None:
        """Forget the handler of a request; its further outputs are queued."""
        with self._lock:
            self._handlers.pop(request_id, None)

    @property
    def num_handlers(self) -> int:
        """Number of requests with a handler."""
        return len(self._handlers)

    def read(
        self, request_id: str | None, timeout: float | None, can_come: Callable[[], bool]
    ) -> GenerationOutput | None:
        """Return the oldest output, of one request where it is named; None when there is none in time.

        Args:
            request_id: the request; None for any.
            timeout: seconds to wait; None waits while `can_come` is true.
            can_come: whether such an output may still come; called with the lock held.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while (output := self._take(request_id)) is None:
                left = None if deadline is None else deadline - time.monotonic()
                if (left is not None and left <= 0) or not can_come():
                    return None
                self._wait(request_id, CHECK_SECONDS if left is None else min(left, CHECK_SECONDS))
            return output

    def _wait(self, request_id: str | None, seconds: float) -> None:
        """Wait until an output for these readers comes; the caller holds the lock, which is free meanwhile."""
        reader = threading.Condition(self._lock)
        waiting = self._readers.setdefault(request_id, [])
        waiting.append(reader)
        try:
            reader.wait(seconds)
        finally:
            waiting.remove(reader)
            if not waiting:
                del self._readers[request_id]

    def has(self, request_id: str) -> bool:
        """Return whether an output of a request is not read, or has a handler to come."""
        with self._lock:
            return request_id in self._numbers or request_id in self._handlers

    def _take(self, request_id: str | None) -> GenerationOutput | None:
        if request_id is None:
            if not self._unread:
                return None
            number, output = self._unread.popitem(last=False)
            own = self._numbers[output.request_id]
            own.popleft()
        else:
            if not (own := self._numbers.get(request_id, deque())):
                return None
            number = own.popleft()
            output = self._unread.pop(number)
        if not own:
            del self._numbers[output.request_id]
        return output

    def get(self, block: bool = True, timeout: float | None = None) -> GenerationOutput:
        """Return the oldest output. Raises queue.Empty."""
        output = self.read(None, timeout if block else 0.0, lambda: True)
        if output is None:
            raise queue.Empty
        return output

    def get_nowait(self) -> GenerationOutput:
        """Return the oldest output. Raises queue.Empty."""
        return self.get(block=False)

    def qsize(self) -> int:
        """Return the number of outputs that are not read."""
        return len(self._unread)

    def empty(self) -> bool:
        """Return whether every output is read."""
        return not self._unread


def _run(calls: Sequence[tuple[ResultHandler, GenerationOutput]]) -> None:
    """Call handlers in their event loop; one that raises does not keep outputs from the others."""
    for handler, output in calls:
        try:
            handler(output)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the result handler of request {output.request_id} raised", "exception": error}
            )
