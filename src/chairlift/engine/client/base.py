"""EngineClient: the protocol through which the server and the library use an engine, wherever it runs."""

from collections.abc import Callable
from typing import Protocol

from chairlift.core.engine_output import EngineOutput
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import GenerateRequest
from chairlift.engine.batch_snapshot import BatchSnapshot
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.request_validation import ValidatedRequest
from chairlift.engine.runner.base import AdapterInfo, RunnerInfo
from chairlift.engine.scheduler_and_cache_state import CacheState, SchedulerState
from chairlift.engine.step_stats import StepStats

OutputSink = Callable[[list[EngineOutput]], None]
"""Receives outputs of the requests submitted with it, of one or more consecutive steps; called from the engine thread,
must not block."""

StepStatsSink = Callable[[StepStats], None]
"""Receives the stats of one committed step; called from the engine thread (or the client's), must not block."""


class EngineClient(Protocol):
    """Submits requests to an engine; each accepted one gets exactly one final output, in every case.

    Attributes:
        info: the RunnerInfo from the start of the runner.
        limits: the limits that a request is checked against before it is queued.
    """

    @property
    def info(self) -> RunnerInfo:
        """The RunnerInfo from the start of the runner."""
        ...

    @property
    def limits(self) -> RequestLimits:
        """The limits that a request is checked against before it is queued."""
        ...

    @property
    def state(self) -> ReplicaState:
        """The last known lifecycle state of the engine, without a remote call."""
        ...

    @property
    def restarts(self) -> int:
        """Number of restarts of the engine."""
        ...

    @property
    def is_hanging(self) -> bool:
        """Whether the step or the warm-up in progress takes longer than LivenessConfig allows, without a remote call.

        What waits for such an engine may wait for ever.
        """
        ...

    def submit(self, request: GenerateRequest | ValidatedRequest, sink: OutputSink) -> None:
        """Queue a request; one that was validated against the client's limits is not validated again.

        Raises InvalidRequest for a request that can never be served, DuplicateRequestId, EngineDead. A full queue is
        reported in the request's final output.
        """
        ...

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it; the sink receives its final output.

        Does nothing when the request is not open.
        """
        ...

    def watch_steps(self, sink: StepStatsSink | None) -> None:
        """Pass the stats of every step committed from now on to the sink, in order; None ends that.

        The stats of a step arrive before its outputs. A client has one sink: a later one replaces an earlier one. A
        call that has started may end after this returns. A sink that raises is logged and stays.
        """
        ...

    def load(self) -> LoadReport:
        """Return how busy the engine is."""
        ...

    def scheduler_state(self) -> SchedulerState:
        """Return the waiting requests, in order, and their wait reasons."""
        ...

    def cache_state(self) -> CacheState:
        """Return the block counts of the KV cache."""
        ...

    def batch_snapshot(self) -> BatchSnapshot:
        """Return every open sequence, the last steps and the block map; the engine records steps while it is called."""
        ...

    def check_integrity(self) -> list[str]:
        """Check the integrity of blocks and slots; returns the errors, an empty list without any."""
        ...

    def flush_cache(self) -> int:
        """Evict every cached block without a reference; returns how many."""
        ...

    def warmup(self) -> float:
        """Run the warm-up steps, so that no request is slowed by first-use costs; returns seconds.

        Changes no token, no block and no count. Open requests wait meanwhile. Raises EngineDead, and the error of a
        step of that size (out of memory, for example); the engine then continues.
        """
        ...

    def load_adapter(self, number: int, folder: str) -> AdapterInfo:
        """Load the LoRA adapter of a folder under a number of this client's, at least 1, and wait for that.

        Steps go on meanwhile, and so do other calls. Raises ModelError for a folder that cannot be used, ConfigError
        for an engine without adapters, and EngineDead. After a restart the engine has no adapter.
        """
        ...

    def drop_adapter(self, number: int) -> None:
        """Free an adapter whose requests have ended or were aborted; an unknown number is ignored."""
        ...

    def close(self) -> None:
        """End every open request with EngineDead and free everything; may be called more than once."""
        ...
