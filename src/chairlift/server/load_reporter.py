"""LoadReporter: what a replica says about itself to load balancers and routers."""

import hashlib
import math
import secrets
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

from chairlift import __version__
from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import FingerprintMismatch
from chairlift.core.host.resource_monitor import ResourceUsage
from chairlift.core.load_report import LoadReport, LoadSummary, ReplicaReport, ReplicaState
from chairlift.engine.step_stats import StepStats
from chairlift.llm.text_service import TextService
from chairlift.protocol.router_headers import LOAD_HEADER
from chairlift.server.step_rates import StepRates
from chairlift.web.admission import AdmissionController
from chairlift.web.error_responses import Header

HEADER_SECONDS = 0.005
"""Seconds for which the header of the load is reused: making it takes 10 microseconds, reading it less than one."""

MAX_WAIT_MS = 86_400_000
FINGERPRINT_CHARS = 32


class StateSource(Protocol):
    """Knows the state of the replica."""

    @property
    def state(self) -> ReplicaState:
        """The current state."""
        ...


class LoadReporter:
    """Reports of one replica. Belongs to one event loop; the engine's thread calls record_step().

    Attributes:
        fingerprint: equal on replicas that give the same tokens for the same request; "" until a model is loaded.
    """

    def __init__(
        self, models: tuple[str, ...], lifecycle: StateSource, admission: AdmissionController,
        clock: Clock | None = None, resources: Callable[[], ResourceUsage] = ResourceUsage,
        aliases: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._instance_id = secrets.token_hex(8)
        self._num_restarts: Callable[[], int] = lambda: 0
        self.fingerprint = ""
        self._models, self._aliases = models, aliases
        self._lifecycle, self._admission = lifecycle, admission
        self._clock, self._resources = clock or SystemClock(), resources
        self._rates = StepRates(self._clock)
        self._block_size = self._num_blocks = self._held_blocks = 0
        self._header: list[Header] = []
        self._header_until = -math.inf

    def attach_service(self, service: TextService) -> None:
        """Report about this service from now on."""
        info = service.client.info
        self.fingerprint = service_fingerprint(service)
        self._block_size, self._num_blocks = info.block_size, info.num_blocks
        self._num_restarts = lambda: service.client.restarts

    @property
    def instance_id(self) -> str:
        """Random for each start of the server, and another one after each restart of the engine.

        The prefix cache is empty after either.
        """
        return f"{self._instance_id}.{self._num_restarts()}"

    def record_load(self, load: LoadReport) -> None:
        """Record the engine's own report: requests that are aborted free their blocks without a step."""
        if load.total_blocks:
            self._held_blocks = load.total_blocks - load.free_blocks

    def check_fingerprint(self, expected: str) -> None:
        """Raise FingerprintMismatch if a request resumes from tokens of other weights; "" is any."""
        if expected and expected != self.fingerprint:
            raise FingerprintMismatch(expected, self.fingerprint)

    def record_step(self, stats: StepStats) -> None:
        """Record a committed step."""
        self._held_blocks = self._num_blocks - stats.free_blocks
        self._rates.record(stats)

    def report(self, load: LoadReport) -> ReplicaReport:
        """Return the report of a replica whose engine has this load."""
        admission, max_running, resources = self._admission, self._admission.max_running, self._resources()
        return ReplicaReport(
            **asdict(load), admission_waiting_requests=admission.waiting_requests,
            admission_waiting_tokens=admission.waiting_tokens,
            expected_wait_seconds=round(admission.expected_wait, 3), instance_id=self.instance_id,
            fingerprint=self.fingerprint, version=__version__, models=self._models, aliases=self._aliases,
            block_size=self._block_size,
            max_running_requests=int(max_running) if math.isfinite(max_running) else 0,
            prefill_tokens_per_second=round(self._rates.prefill_tokens_per_second, 1),
            output_tokens_per_second=round(self._rates.output_tokens_per_second, 1),
            cpu_ratio=resources.cpu_ratio, memory_ratio=resources.memory_ratio, gpu_ratio=resources.gpu_ratio,
            gpu_memory_ratio=resources.gpu_memory_ratio,
        )  # fmt: skip

    def summary(self) -> LoadSummary:
        """Return the load as the event loop knows it, without the engine."""
        admission, wait_ms = self._admission, self._admission.expected_wait * 1000
        return LoadSummary(
            state=self._lifecycle.state, running_requests=admission.running_requests,
            waiting_requests=admission.waiting_requests, waiting_tokens=admission.waiting_tokens,
            expected_wait_ms=int(min(wait_ms, MAX_WAIT_MS)),
            kv_use=min(1.0, max(0.0, self._held_blocks / self._num_blocks)) if self._num_blocks else 0.0,
            instance_id=self.instance_id, fingerprint=self.fingerprint,
        )  # fmt: skip

    def headers(self) -> list[Header]:
        """Return the header of the load, at most HEADER_SECONDS old."""
        if (now := self._clock.now()) >= self._header_until:
            self._header = [(LOAD_HEADER, self.summary().header_value())]
            self._header_until = now + HEADER_SECONDS
        return self._header


def service_fingerprint(service: TextService) -> str:
    """Return a digest of what decides on the tokens of a request: weights, tokenizer, chat template and defaults.

    The engine's model id has the weights, their dtype and quantization, and the KV cache's dtype.
    """
    tokenizer, chat = service.tokenizer, service.chat_template
    parts = (
        service.client.info.model_id, "" if tokenizer is None else tokenizer.serialized(),
        "" if chat is None else chat.text, repr(service.defaults.eos_token_ids),
        repr(sorted(service.defaults.sampling.items())),
    )  # fmt: skip
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:%b" % (len(data := part.encode("utf-8", "surrogatepass")), data))
    return digest.hexdigest()[:FINGERPRINT_CHARS]
