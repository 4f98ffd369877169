"""Replica: the state that all routes share: the text service, admission, tenant limits, lifecycle and telemetry."""

import asyncio
import itertools
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from chairlift.core.errors import ChairliftError, ModelNotFound
from chairlift.core.host.resource_monitor import ResourceMonitor
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.model_names import matching_name
from chairlift.engine.step_stats import StepStats
from chairlift.llm.async_llm import AsyncLLM
from chairlift.llm.text_service import TextService
from chairlift.observability.latency_targets import LatencyTargets
from chairlift.observability.tracing.tracer import Tracer
from chairlift.server.body_reader import BodyReader
from chairlift.server.config import ServerConfig
from chairlift.server.drain_handover import Handover
from chairlift.server.live.engine_reader import EngineReader
from chairlift.server.live.step_history import StepHistory
from chairlift.server.load_reporter import LoadReporter
from chairlift.server.model_formats import ModelFormats
from chairlift.server.telemetry import Telemetry
from chairlift.web.admission import AdmissionController
from chairlift.web.body import Scope, timeout_of
from chairlift.web.ignored_fields import ignored_fields_header
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.malloc_tuning import MallocTrimmer, malloc_trimmer
from chairlift.web.tenant_rate_limiter import TenantRateLimiter

log = logging.getLogger(__name__)

PULSE_SECONDS = 1.0
NUM_RECENT_STEPS = 64
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
        bodies: reads the bodies of requests, and runs work on them in threads.
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
            config.served_names, self.lifecycle, self.admission, resources=lambda: self.resources.usage,
            aliases=config.aliases,
        )  # fmt: skip
        self.tenants = TenantRateLimiter(config.http.tenant)
        self.history = StepHistory()
        self.handover = Handover()
        self._numbers = itertools.count()
        self.bodies = BodyReader(self.lifecycle, self.admission, lambda: self.config.http)
        self._metrics_thread = ThreadPoolExecutor(1, thread_name_prefix="chairlift-metrics")
        self._service: TextService | None = None
        self._malloc_trimmer: MallocTrimmer | None = None
        self._llm: AsyncLLM | None = None
        self._formats: ModelFormats | None = None
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

        A step has at most `budget` tokens, and at most `max_running` requests run, or fewer if the runner has states of
        fewer.
        """
        most = service.client.info.max_running_requests
        self.admission.max_running = max_running if most is None else min(max_running, most)
        self._service, self._llm = service, AsyncLLM.from_service(service, self.admission.stream_interval)
        self._formats = ModelFormats(service, self.config.tool_call_parser)
        self._formats.probe_template()
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

    @property
    def formats(self) -> ModelFormats:
        """How the served model writes tool calls and reasoning."""
        assert self._formats is not None, "nothing is served yet"
        return self._formats

    # -- requests --------------------------------------------------------------------------------------------------

    def new_engine_request_id(self, request_id: str) -> str:
        """Return a unique engine request id that begins with the request's id, which a client may repeat."""
        return f"{request_id}.{next(self._numbers)}"

    def resolve_model(self, name: str) -> str:
        """Return the served name that a request's name means: "" is the first one. Raises ModelNotFound."""
        names = self.config.served_names
        if not name or matching_name(name, self.config.aliases):
            return matching_name(name, names) or names[0]
        if found := matching_name(name, names):
            return found
        raise ModelNotFound(name, ", ".join(names))

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
        self.bodies.close()
        self._metrics_thread.shutdown(wait=False, cancel_futures=True)
