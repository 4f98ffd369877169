"""FleetReplica: one replica of a simulated fleet, from its start to its end, as router and autoscaler see it."""

import math
from dataclasses import dataclass

from chairlift.autoscaler.pool_sample import ReplicaSample
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import ServingModel, SimRequest
from chairlift.core.load_report import ReplicaState
from chairlift.router.policies.candidate import Candidate
from chairlift.router.replicas.move_decision import ReplicaQueue

REPORT_SECONDS = 1.0
"""Largest age of the load report that the router has; the end of each answer brings a new one, too."""

NEW_LATENCY_SHARE = 0.1
"""Share of the newest request in the mean latency of a replica's recent requests."""


@dataclass(slots=True)
class _Report:
    at: float = -math.inf
    waiting_tokens: int = 0
    running_requests: int = 0
    expected_wait_seconds: float = 0.0


class FleetReplica:
    """One replica with its engine.

    Attributes:
        replica_id: its name, unique in the run.
        state: STARTING until it serves, DRAINING until its last request has ended, then STOPPED.
        started_at: when its start was asked for.
        open_requests: requests that the router has open there.
        num_requests: requests that the router has sent there.
    """

    __slots__ = (
        "_candidate", "_latency_seconds", "_max_running", "_model", "_num_waiting", "_old_busy_seconds",
        "_old_output_tokens", "_pending_prefill_tokens", "_prefill_speed", "_report", "_sampled_at",
        "_waiting_tokens", "num_requests", "open_requests", "replica_id", "started_at", "state",
    )  # fmt: skip

    def __init__(
        self, replica_id: str, model: ServingModel, now: float, *, prefill_speed: float, max_running: int
    ) -> None:
        self.replica_id, self.state = replica_id, ReplicaState.STARTING
        self.started_at = now
        self.num_requests = self.open_requests = self._num_waiting = self._waiting_tokens = (
            self._pending_prefill_tokens
        ) = 0
        self._model, self._prefill_speed, self._max_running = model, prefill_speed, max_running
        self._latency_seconds = 0.0
        self._report = _Report()
        self._candidate: Candidate | None = None
        self._old_busy_seconds, self._old_output_tokens, self._sampled_at = 0.0, 0, now

    @property
    def model(self) -> ServingModel:
        """Its engine."""
        return self._model

    def open(self, request: SimRequest, now: float) -> None:
        """Send the request there."""
        self.num_requests += 1
        self.open_requests += 1
        self._num_waiting += 1
        self._waiting_tokens += request.prompt_tokens
        self._pending_prefill_tokens += request.routed_tokens
        self._candidate = None
        self._model.submit(request, now)

    def withdraw(self, request: SimRequest) -> bool:
        """Take back a request without a first token; return False if it has started and stays."""
        if not self._model.withdraw(request):
            return False
        self.open_requests -= 1
        self.record_first_token(request)  # it waits no more
        return True

    def queue(self, now: float) -> ReplicaQueue:
        """Return what is open there as the router sees it."""
        return ReplicaQueue(
            replica_id=self.replica_id, open_requests=self.open_requests, waiting_requests=self._num_waiting,
            free_places=max(0, self._max_running - self.open_requests),
            expected_wait_seconds=self.candidate(now).expected_wait_seconds,
        )  # fmt: skip

    def record_first_token(self, request: SimRequest) -> None:
        """Count a request as running."""
        self._num_waiting -= 1
        self._waiting_tokens -= request.prompt_tokens
        self._pending_prefill_tokens -= request.routed_tokens
        self._candidate = None

    def record_end(self, request: SimRequest, now: float) -> None:
        """Count a request down; its answer has a load report."""
        self.open_requests -= 1
        first_token_at = request.first_token_at
        assert first_token_at is not None
        latency = now - request.arrived_at
        share = NEW_LATENCY_SHARE if self._latency_seconds else 1.0
        self._latency_seconds += share * (latency - self._latency_seconds)
        self._make_report(now)

    def candidate(self, now: float) -> Candidate:
        """Return the replica as the policies see it."""
        if now - self._report.at >= REPORT_SECONDS:
            self._make_report(now)
        if self._candidate is None:
            report = self._report
            self._candidate = Candidate(
                replica_id=self.replica_id, open_requests=self.open_requests,
                pending_prefill_tokens=self._pending_prefill_tokens, waiting_tokens=report.waiting_tokens,
                running_requests=report.running_requests, expected_wait_seconds=report.expected_wait_seconds,
                prefill_tokens_per_second=self._prefill_speed,
            )  # fmt: skip
        return self._candidate

    def _make_report(self, now: float) -> None:
        self._report = _Report(
            now, self._waiting_tokens, self.open_requests - self._num_waiting, self.expected_wait_seconds
        )
        self._candidate = None

    @property
    def expected_wait_seconds(self) -> float:
        """Prefill of the prompts that wait, and the ends of requests for which those beyond the limit wait."""
        wait = self._waiting_tokens / self._prefill_speed
        if (num_beyond := self.open_requests - self._max_running) > 0:
            wait += num_beyond * self._latency_seconds / self._max_running
        return wait

    def sample(self, now: float) -> ReplicaSample:
        """Return the replica as the autoscaler sees it; shares and rates are of the time since the last sample."""
        if self.state is ReplicaState.STARTING:
            return ReplicaSample(replica_id=self.replica_id, state=self.state, age_seconds=now - self.started_at)
        model = self._model
        model.update_progress(now)
        seconds = max(now - self._sampled_at, 1e-9)
        busy = (model.busy_seconds - self._old_busy_seconds) / seconds
        tokens = (model.output_tokens - self._old_output_tokens) / seconds
        self._old_busy_seconds, self._old_output_tokens, self._sampled_at = model.busy_seconds, model.output_tokens, now
        busy = min(1.0, busy)
        return ReplicaSample(
            replica_id=self.replica_id, state=self.state, age_seconds=now - self.started_at,
            waiting_requests=self._num_waiting, waiting_tokens=self._waiting_tokens,
            running_requests=self.open_requests - self._num_waiting,
            expected_wait_seconds=self.expected_wait_seconds, kv_usage_ratio=model.kv_usage_ratio,
            prefill_tokens_per_second=self._prefill_speed, output_tokens_per_second=tokens,
            max_running_requests=self._max_running, cpu_ratio=busy, gpu_ratio=busy,
        )  # fmt: skip
