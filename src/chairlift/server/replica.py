"""Replica: the state that all routes share: the text service, admission, tenant limits, lifecycle and telemetry."""

import asyncio
import contextvars
import itertools
import logging
import math
import os
import re
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

from chairlift.core.errors import ChairliftError, InvalidRequest, ModelNotFound
from chairlift.core.host.resource_monitor import ResourceMonitor
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.engine.step_stats import StepStats
from chairlift.llm.async_llm import AsyncLLM
from chairlift.llm.text_service import TextService
from chairlift.observability.latency_targets import LatencyTargets
from chairlift.observability.tracing.tracer import Tracer
from chairlift.server.config import ServerConfig
from chairlift.server.handover import Handover
from chairlift.server.live.engine_reader import EngineReader
from chairlift.server.live.step_history import StepHistory
from chairlift.server.load_reporter import LoadReporter
from chairlift.server.telemetry import Telemetry
from chairlift.text.forced_call_grammar import marker_ids
from chairlift.text.reasoning_formats import ReasoningFormat
from chairlift.text.template_features import offers_direct_answer
from chairlift.text.token_pieces import TokenPieces
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import detect_tool_format, keep_reasoning, tool_format_by_name
from chairlift.web.admission import AdmissionController
from chairlift.web.body import Receive, Scope, parse_json_object, read_body, timeout_of
from chairlift.web.ignored_fields import ignored_fields_header
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.request_info import request_info
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.malloc_tuning import MallocTrimmer, malloc_trimmer
from chairlift.web.tenant_rate_limiter import TenantRateLimiter

log = logging.getLogger(__name__)

TEXT_THREADS = 4
PULSE_SECONDS = 1.0
NUM_RECENT_STEPS = 64
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


class Replica:
    """One model behind one API server. Belongs to one event loop.

    Attributes:
        config: the operator's settings.
        lifecycle: starting, ready, draining.
        telemetry: metrics and records of finished requests.
        admission: the admission queue in front of the engine.
        tenants: rate limits and usage of each tenant.
        history: what the last minutes came to.
        handover: open requests that a router can resume on another replica.
        resources: measures the use of CPUs, memory and GPUs while update_gauges_forever() runs.
        engine_reader: asks the engine about its state.
        reporter: tells load balancers and routers about the replica.
        tracer: traces requests; None traces none.
        engine_pid: returns the pid of the engine's process; None without one.
        recent_steps: stats of the last steps.
        shown_settings: the settings of the process, without secrets.
    """

    def __init__(
        self, config: ServerConfig, tracer: Tracer | None = None, shown_settings: Mapping[str, Any] | None = None
    ) -> None:  # fmt: skip
        self.config, self.tracer, self.shown_settings = config, tracer, shown_settings or {}
        self.recent_steps: deque[StepStats] = deque(maxlen=NUM_RECENT_STEPS)
        self.lifecycle = Lifecycle()
        targets = LatencyTargets.of_milliseconds(config.http.slo_ttft_ms, config.http.slo_itl_ms)
        self.telemetry = Telemetry(config.served_names[0], config.metric_aliases, targets)
        self.admission = AdmissionController(config.http.admission)
        self.resources = ResourceMonitor()
        self.reporter = LoadReporter(
            config.served_names, self.lifecycle, self.admission, resources=lambda: self.resources.usage
        )
        self.tenants = TenantRateLimiter(config.http.tenant)
        self.history = StepHistory()
        self.handover = Handover()
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="chairlift-text")
        self._large_threads = ThreadPoolExecutor(1, thread_name_prefix="chairlift-large")
        self._metrics_thread = ThreadPoolExecutor(1, thread_name_prefix="chairlift-metrics")
        self._service: TextService | None = None
        self._malloc_trimmer: MallocTrimmer | None = None
        self._llm: AsyncLLM | None = None
        self.engine_reader = EngineReader()
        self.engine_pid: Callable[[], int | None] = lambda: None

    def reload_limits(self, limits: HttpConfig) -> None:
        """Apply the limits of another config; every other setting stays."""
        http = replace(self.config.http, admission=limits.admission, tenant=limits.tenant)
        self.config = replace(self.config, http=http)
        self.admission.renew(limits.admission)
        self.tenants.renew(limits.tenant)

    # -- the model -------------------------------------------------------------------------------------------------

    def attach_service(
        self, service: TextService, engine_pid: Callable[[], int | None], budget: int, max_running: float = math.inf
    ) -> None:  # fmt: skip
        """Serve this text service.

        A step has at most `budget` tokens, and at most `max_running` requests run.
        """
        self.admission.max_running = max_running
        self._service, self._llm = service, AsyncLLM.from_service(service, self.admission.stream_interval)
        self.engine_pid = engine_pid
        self._malloc_trimmer = malloc_trimmer()  # after the model's own files were read
        self.reporter.attach_service(service)
        self.resources.watch_gpus(service.client.info.device)

        def on_step(stats: StepStats) -> None:
            self.admission.engine_counts = stats.waiting, stats.running
            self.recent_steps.append(stats)
            self.reporter.record_step(stats)
            self.telemetry.record_step(stats, budget)
            self.history.record(stats)

        service.client.watch_steps(on_step)
        self.lifecycle.mark_started(lambda: service.client.state)

    @property
    def has_service(self) -> bool:
        """Whether a text service is attached: the engine has started once."""
        return self._service is not None

    @property
    def service(self) -> TextService:
        """The text service; the route has checked the lifecycle before."""
        assert self._service is not None, "nothing is served yet"
        return self._service

    @property
    def num_engine_restarts(self) -> int:
        """Restarts of the engine."""
        return 0 if self._service is None else self._service.client.restarts

    @property
    def llm(self) -> AsyncLLM:
        """The text service for coroutines."""
        assert self._llm is not None, "nothing is served yet"
        return self._llm

    @cached_property
    def template(self) -> str:
        """The text of the model's chat templates, to detect their features."""
        chat = self.service.chat_template
        return "" if chat is None else chat.text

    @cached_property
    def tool_format(self) -> ToolFormat:
        """Format of the model's tool calls, from the setting, or from the chat template and the special tokens.

        Where a model may choose and reasons without a start marker, no grammar enforces the format: it would take the
        reasoning for the answer. The same holds for a template that tells the model to call a tool of its own.
        """
        tokenizer, name = self.service.tokenizer, self.config.tool_call_parser
        special = () if tokenizer is None else tokenizer.special_tokens
        found = tool_format_by_name(name, special) if name is not None else detect_tool_format(self.template, special)
        if (chat := self.service.chat_template) is not None and chat.keeps_reasoning:
            found = keep_reasoning(found)
        if self.reasoning_format is not None:
            found = replace(found, follows_reasoning=True)
        if self.reasoning_format is not None and self.reasoning_format.is_always_open:
            found = replace(found, is_enforced=False, auto_notations=())
        if offers_direct_answer(self.template):
            found = replace(found, auto_notations=())
        if tokenizer is None:
            return found
        return replace(found, token_ids=marker_ids(found, partial(tokenizer.encode, add_special_tokens=False)))

    @property
    def reasoning_format(self) -> ReasoningFormat | None:
        """How the model marks its reasoning; None where it has none."""
        chat = self.service.chat_template
        return None if chat is None else chat.reasoning_format

    @cached_property
    def has_special_reasoning_markers(self) -> bool:
        """Whether the model marks its reasoning with special tokens, which must then stay in the text."""
        reasoning, tokenizer = self.reasoning_format, self.service.tokenizer
        return reasoning is not None and tokenizer is not None and reasoning.uses_any(tokenizer.special_tokens)

    @cached_property
    def token_pieces(self) -> TokenPieces:
        """Text and bytes of single tokens. Raises InvalidRequest without a tokenizer."""
        if self.service.tokenizer is None:
            raise InvalidRequest("logprobs needs a tokenizer, which the model does not have", param="logprobs")
        return TokenPieces(self.service.tokenizer)

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

    # -- requests --------------------------------------------------------------------------------------------------

    async def parse_body(
        self, scope: Scope, receive: Receive, reader: Callable[[dict[str, Any]], T], *, is_work: bool = False
    ) -> T:  # fmt: skip
        """Return what `reader` parses from a request's JSON object.

        Raises Unavailable if the server accepts no requests.

        A large body, and one with a JSON Schema, is parsed in a thread. A request for the engine is not
        parsed while the admission queue is full: under a flood of requests a rejection has to be cheap.
        """
        self.lifecycle.check()
        config = self.config
        body = await read_body(scope, receive, max_bytes=config.http.max_body_bytes, seconds=config.http.body_timeout)
        info = request_info(scope)
        info.body_bytes = size = len(body)
        if is_work and info.permit is not None:
            info.permit.set_body_bytes(size)
        elif is_work:
            self.admission.check(body_bytes=size)
        if size <= SMALL_BODY_BYTES and not MAY_HAVE_SCHEMA.search(body):
            return reader(parse_json_object(body))
        return await self.in_thread(lambda: reader(parse_json_object(body)), is_large=size > LARGE_BODY_BYTES)

    def new_engine_request_id(self, request_id: str) -> str:
        """Return a unique engine request id that begins with the request's id, which a client may repeat."""
        return f"{request_id}.{next(self._numbers)}"

    def check_model(self, name: str) -> None:
        """Raise ModelNotFound unless the model is served under this name."""
        if name not in self.config.served_names:
            raise ModelNotFound(name, ", ".join(self.config.served_names))

    def ignored_fields_header(self, names: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
        """Return the header with fields without effect. Raises InvalidRequest if the server is strict."""
        return ignored_fields_header(names, is_strict=self.config.reject_unknown_fields)

    def timeout(self, scope: Scope, requested_seconds: float | None) -> float | None:
        """Return the seconds that a request may take: the shorter of its field and its header."""
        return timeout_of(scope, requested_seconds)

    # -- load and gauges -------------------------------------------------------------------------------------------

    async def metrics_page(self, accept: str = "") -> tuple[bytes, str]:
        """Render the Prometheus page in its own thread, which does not wait for the engine.

        Returns the page and its content type, by the header Accept.
        """
        return await self.in_metrics_thread(partial(self.telemetry.metrics.render_for, accept))

    async def in_metrics_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread of reports, which never waits for the engine: `work` must not either."""
        return await asyncio.get_running_loop().run_in_executor(self._metrics_thread, work)

    async def load(self) -> LoadReport:
        """Return the replica's load."""
        if self._service is None:
            return LoadReport(state=self.lifecycle.state)
        report = await asyncio.to_thread(self._service.client.load)
        self.reporter.record_load(report)
        state = self.lifecycle.state
        return report if state is ReplicaState.READY else LoadReport(state=state)

    async def update_gauges_forever(self) -> None:
        """Update the gauges every PULSE_SECONDS, until cancelled."""
        is_failing = False
        self.resources.start()
        while True:
            try:
                await self._update_gauges()
                is_failing = False
            except Exception:
                if not is_failing:  # log only the first of a series of failures
                    log.exception("the gauges cannot be read")
                is_failing = True
            await asyncio.sleep(PULSE_SECONDS)

    async def _update_gauges(self) -> None:
        load, cache, restarts, block_bytes = LoadReport(state=self.lifecycle.state), None, 0, 0.0
        pids = {"api": os.getpid()}
        if self._service is not None:
            client = self._service.client
            restarts = client.restarts
            block_bytes = float(client.info.block_bytes)
            if (pid := self.engine_pid()) is not None:
                pids["engine"] = pid
            try:
                load = await self.load()
                if load.state is ReplicaState.READY:
                    cache = await self.engine_reader.ask("cache", client.cache_state)
            except ChairliftError as error:
                log.debug("the engine did not reply: %s", error)
        self.history.sample(load)
        self.telemetry.update_gauges(self.lifecycle.state, load, cache, self.admission, restarts, block_bytes)
        await asyncio.to_thread(partial(self.telemetry.record_processes, pids))
        self.telemetry.record_resources(self.resources.usage)
        if self._malloc_trimmer is not None:
            await asyncio.to_thread(self._malloc_trimmer.trim_if_large)

    async def close(self) -> None:
        """Stop the engine; open requests end with an error."""
        self.resources.stop()
        if self._llm is not None:
            await asyncio.to_thread(self._llm.close)
        self.engine_reader.close()
        for pool in (self._threads, self._large_threads, self._metrics_thread):
            pool.shutdown(wait=False, cancel_futures=True)
