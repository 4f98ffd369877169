"""BodyReader: reads and parses the bodies of requests, and runs work on them in threads chosen by their size."""

import asyncio
import contextvars
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from chairlift.web.admission import AdmissionController
from chairlift.web.body import Receive, Scope, parse_json_object, read_body
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.request_info import request_info
from chairlift.web.service.http_config import HttpConfig

TEXT_THREADS = 4
TINY_BODY_BYTES = 1024
"""Bodies up to this size are tokenized on the event loop: that takes 0.1 to 0.2 ms, as long as a thread handover."""

SMALL_BODY_BYTES = 16_384
"""Bodies up to this size are parsed on the event loop, which takes a millisecond at most."""

MAY_HAVE_SCHEMA = re.compile(rb"json|tools|\\u0")
"""Part of a body that may have a JSON Schema, whose lowering takes up to a tenth of a second; escapes may hide it."""

LARGE_BODY_BYTES = 262_144
"""A larger text takes hundreds of megabytes while it is tokenized: one thread does those, one at a time, and small
requests do not wait for them."""

T = TypeVar("T")


class BodyReader:
    """Reads bodies on an event loop and in threads. Belongs to one event loop.

    Args:
        lifecycle: whether the server accepts requests.
        admission: the admission queue, which bounds the bytes of the bodies that wait.
        limits: returns the limits of bodies: their size, and the seconds that they may take to arrive.
    """

    def __init__(
        self, lifecycle: Lifecycle, admission: AdmissionController, limits: Callable[[], HttpConfig]
    ) -> None:  # fmt: skip
        self._lifecycle, self._admission, self._limits = lifecycle, admission, limits
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="chairlift-text")
        self._large_threads = ThreadPoolExecutor(1, thread_name_prefix="chairlift-large")

    async def parse_body(
        self, scope: Scope, receive: Receive, reader: Callable[[dict[str, Any]], T], *, is_work: bool = False
    ) -> T:  # fmt: skip
        """Return what `reader` parses from a request's JSON object.

        Raises Unavailable if the server accepts no requests.

        A large body, and one with a JSON Schema, is parsed in a thread. A request for the engine is not
        parsed while the admission queue is full: under a flood of requests a rejection has to be cheap.
        """
        self._lifecycle.check()
        limits = self._limits()
        body = await read_body(scope, receive, max_bytes=limits.max_body_bytes, seconds=limits.body_timeout)
        info = request_info(scope)
        info.body_bytes = size = len(body)
        if is_work and info.permit is not None:
            info.permit.set_body_bytes(size)
        elif is_work:
            self._admission.check(body_bytes=size)
        if size <= SMALL_BODY_BYTES and not MAY_HAVE_SCHEMA.search(body):
            return reader(parse_json_object(body))
        return await self.in_thread(lambda: reader(parse_json_object(body)), is_large=size > LARGE_BODY_BYTES)

    async def run_by_body_size(self, work: Callable[[], T], scope: Scope, *, is_quick: bool = True) -> T:
        """Run `work` on a request's body (templates, tokens): in a thread unless the body is tiny.

        Work that may take longer than one pass over the body is not `is_quick`.
        """
        size = request_info(scope).body_bytes
        if is_quick and size <= TINY_BODY_BYTES:
            return work()
        return await self.in_thread(work, is_large=size > LARGE_BODY_BYTES)

    async def in_thread(self, work: Callable[[], T], *, is_large: bool = False) -> T:
        """Run `work` in a thread, off the event loop; large work runs one after the other."""
        threads = self._large_threads if is_large else self._threads
        context = contextvars.copy_context()  # log lines of the thread carry the request's id
        return await asyncio.get_running_loop().run_in_executor(threads, context.run, work)

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        for pool in (self._threads, self._large_threads):
            pool.shutdown(wait=False, cancel_futures=True)
