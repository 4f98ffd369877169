"""Replica: what the routes share: the text service once it is there, and everything that guards it."""

import asyncio
import contextvars
import itertools
import logging
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

from chairlift.core.errors import ChairliftError, InvalidRequest, ModelNotFound
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.validation import invalid_param
from chairlift.engine.stats import StepStats
from chairlift.llm.async_llm import AsyncLLM
from chairlift.llm.text_service import Service
from chairlift.server.config import ServerConfig
from chairlift.server.malloc_tuning import Thrift, thrift
from chairlift.server.telemetry import Telemetry
from chairlift.text.reasoning_parser import has_reasoning
from chairlift.text.token_pieces import TokenPieces
from chairlift.text.tool_parser import notation_of
from chairlift.web.admission import Admission
from chairlift.web.body import Receive, Scope, header, json_object, read_body
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.tenant_limits import Tenants

log = logging.getLogger(__name__)

TEXT_THREADS = 4
PULSE_SECONDS = 1.0
MAX_TIMEOUT_MS = 86_400_000
MAX_IGNORED_CHARS = 1024
MAX_IGNORED_NAMES = 256
TINY_BODY_BYTES = 1024
"""Whose one text becomes tokens on the event loop: that takes 0.1 to 0.2 ms, and to hand it to a thread as long."""

SMALL_BODY_BYTES = 16_384
"""That are read on the event loop, which takes a millisecond at most."""

LARGE_BODY_BYTES = 262_144
"""A text of more takes hundreds of megabytes while it becomes tokens: there is one thread for those, so that one is at
work at a time, and what is small waits for none of them."""

T = TypeVar("T")


class Replica:
    """One model behind one door. Belongs to one event loop.

    Attributes:
        config: as the operator wants it.
        lifecycle: starting, ready, draining.
        telemetry: what is counted.
        line: who waits for the engine.
        tenants: what each of them uses.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.lifecycle = Lifecycle()
        self.telemetry = Telemetry(config.served_names[0], config.metric_aliases)
        self.line = Admission(config.admission)
        self.tenants = Tenants(config.tenant)
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="chairlift-text")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="chairlift-large")
        self._scraper = ThreadPoolExecutor(1, thread_name_prefix="chairlift-metrics")
        self._service: Service | None = None
        self._thrift: Thrift | None = None
        self._llm: AsyncLLM | None = None

    def renew(self, config: ServerConfig) -> None:
        """Take the limits of another config over; everything else holds until the end."""
        self.config = replace(self.config, admission=config.admission, tenant=config.tenant)
        self.line.renew(config.admission)
        self.tenants.renew(config.tenant)

    # -- the model -------------------------------------------------------------------------------------------------

    def serve(
        self, service: Service, engine_pid: Callable[[], int | None], budget: int, seats: float = math.inf
    ) -> None:  # fmt: skip
        """Serve this from now on; a step may have `budget` tokens, and `seats` requests may be on board."""
        self.line.seats = seats
        self._service, self._llm = service, AsyncLLM.over(service, self.line.spacing)
        self._thrift = thrift()  # now that the model's own files are read
        self._engine_pid = engine_pid

        def show(stats: StepStats) -> None:
            self.line.engine = stats.waiting, stats.running
            self.telemetry.step(stats, budget)

        service.client.watch_steps(show)
        self.lifecycle.started(lambda: service.client.state)

    @property
    def service(self) -> Service:
        """The text service; a route has checked that there is one."""
        assert self._service is not None, "nothing is served yet"
        return self._service

    @property
    def llm(self) -> AsyncLLM:
        """The same, for coroutines."""
        assert self._llm is not None, "nothing is served yet"
        return self._llm

    @cached_property
    def template(self) -> str:
        """The text of the model's chat templates, to see what they know."""
        chat = self.service.chat_template
        return "" if chat is None else chat.text

    @cached_property
    def notation(self) -> str | None:
        """In which the model calls tools."""
        return notation_of(self.template)

    @cached_property
    def thinks(self) -> bool:
        """Whether the model's answers may begin with reasoning."""
        return has_reasoning(self.template)

    @cached_property
    def pieces(self) -> TokenPieces:
        """Its single tokens. Raises InvalidRequest where it has no tokenizer."""
        if self.service.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so scores have no tokens to name", param="logprobs")
        return TokenPieces(self.service.tokenizer)

    async def by_size(self, work: Callable[[], T], scope: Scope, *, is_quick: bool = True) -> T:
        """Do what a request's body needs (templates, tokens): off the event loop unless that is tiny.

        It is not `is_quick` when it may take longer than going over the body once.
        """
        size: int = scope["body_bytes"]
        if is_quick and size <= TINY_BODY_BYTES:
            return work()
        return await self.in_thread(work, is_large=size > LARGE_BODY_BYTES)

    async def in_thread(self, work: Callable[[], T], *, is_large: bool = False) -> T:
        """Do what takes long off the event loop; what is large one after the other."""
        threads = self._large if is_large else self._threads
        context = contextvars.copy_context()  # what is logged there has the request's id
        return await asyncio.get_running_loop().run_in_executor(threads, context.run, work)

    # -- requests --------------------------------------------------------------------------------------------------

    async def read(
        self, scope: Scope, receive: Receive, reader: Callable[[dict[str, Any]], T], *, is_work: bool = False
    ) -> T:  # fmt: skip
        """Return what a reader makes of the JSON object of a request, if one would be served now.

        A large body is read in a thread: of a million numbers each is looked at. What the engine would have to work for
        is not looked into where the line takes nobody: under a flood of requests a refusal has to be cheap.
        """
        self.lifecycle.check()
        config = self.config
        body = await read_body(scope, receive, max_bytes=config.max_body_bytes, seconds=config.body_seconds)
        if is_work and "permit" not in scope:
            self.line.check()
        scope["body_bytes"] = size = len(body)
        if size <= SMALL_BODY_BYTES:
            return reader(json_object(body))
        return await self.in_thread(lambda: reader(json_object(body)), is_large=size > LARGE_BODY_BYTES)

    def engine_id(self, request_id: str) -> str:
        """Return an id for the engine that begins with the request's own, which a client may use twice."""
        return f"{request_id}.{next(self._numbers)}"

    def check_model(self, name: str) -> None:
        """Raise ModelNotFound unless the model is served under this name."""
        if name not in self.config.served_names:
            raise ModelNotFound(name, ", ".join(self.config.served_names))

    def ignored(self, names: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
        """Return the header that names fields without effect. Raises InvalidRequest where the server is strict."""
        if not names:
            return []
        told = ", ".join(map(_header_word, names[:MAX_IGNORED_NAMES]))
        if self.config.strict:
            raise invalid_param(
                names[0][:64], f"has no effect here (and this server is strict): {told[:MAX_IGNORED_CHARS]}"
            )
        return [(b"x-ignored-parameters", told[:MAX_IGNORED_CHARS].encode())]

    def timeout(self, scope: Scope, asked: float | None) -> float | None:
        """Return the seconds that a request may take: the shorter of its field and its header."""
        given = header(scope, b"x-request-timeout-ms")
        if given is None:
            return asked
        if not given.isdigit() or len(given) > 9 or not 0 < int(given) <= MAX_TIMEOUT_MS:
            raise invalid_param("x-request-timeout-ms", f"must be 1 to {MAX_TIMEOUT_MS} milliseconds")
        seconds = int(given) / 1000
        return seconds if asked is None else min(seconds, asked)

    # -- how things stand ------------------------------------------------------------------------------------------

    async def metrics_page(self) -> bytes:
        """Write the page for Prometheus in a thread of its own, which waits for no engine."""
        return await asyncio.get_running_loop().run_in_executor(self._scraper, self.telemetry.metrics.page)

    async def load(self) -> LoadReport:
        """Say how busy the replica is."""
        if self._service is None:
            return LoadReport(state=self.lifecycle.state)
        report = await asyncio.to_thread(self._service.client.load)
        state = self.lifecycle.state
        return report if state is ReplicaState.READY else LoadReport(state=state)

    async def watch(self) -> None:
        """Keep the gauges in step with how things stand, until cancelled."""
        fails = False
        while True:
            try:
                await self._pulse()
                fails = False
            except Exception:
                if not fails:  # else a log would be full of it
                    log.exception("the gauges cannot be read")
                fails = True
            await asyncio.sleep(PULSE_SECONDS)

    async def _pulse(self) -> None:
        load, cache, restarts, block_bytes = LoadReport(state=self.lifecycle.state), None, 0, 0.0
        pids = {"api": os.getpid()}
        if self._service is not None:
            client = self._service.client
            restarts = client.restarts
            block_bytes = float(client.info.block_bytes)
            if (pid := self._engine_pid()) is not None:
                pids["engine"] = pid
            try:
                load = await self.load()
                if load.state is ReplicaState.READY:
                    cache = await asyncio.to_thread(client.cache_state)
            except ChairliftError as error:
                log.debug("the engine did not answer: %s", error)
        self.telemetry.pulse(self.lifecycle.state, load, cache, self.line, restarts, block_bytes)
        await asyncio.to_thread(partial(self.telemetry.processes, pids))
        if self._thrift is not None:
            await asyncio.to_thread(self._thrift.look)

    async def close(self) -> None:
        """Stop the engine; what is open ends with an error."""
        if self._llm is not None:
            await asyncio.to_thread(self._llm.close)
        for pool in (self._threads, self._large, self._scraper):
            pool.shutdown(wait=False, cancel_futures=True)


def _header_word(name: str) -> str:
    """Return a name that a header can have, whatever a client has called its field."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "_.-") else "?" for char in name[:64])
