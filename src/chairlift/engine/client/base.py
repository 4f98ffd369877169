"""EngineClient: how everybody above speaks to an engine, wherever it runs."""

from collections.abc import Callable
from typing import Protocol

from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import EngineOutput, GenerateRequest
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.stats import CacheState, SchedulerState, StepStats

OutputSink = Callable[[list[EngineOutput]], None]
"""Takes news of the requests submitted with it, of one step or of some in a row; called from the engine's thread, must
not block."""

StepStatsSink = Callable[[StepStats], None]
"""Takes one committed step in numbers; called from the engine's (or the link's) thread, must not block."""


class EngineClient(Protocol):
    """Every request that submit() accepts gets exactly one last Output, also when the engine dies.

    Attributes:
        info: what the runner said when it started.
        limits: what a request is held against before it is queued.
    """

    @property
    def info(self) -> RunnerInfo:
        """What the runner said when it started."""
        ...

    @property
    def limits(self) -> RequestLimits:
        """What a request is held against before it is queued."""
        ...

    @property
    def state(self) -> ReplicaState:
        """Where the engine is in its life, as far as is known at once: nobody is asked."""
        ...

    @property
    def restarts(self) -> int:
        """How often the engine was started again."""
        ...

    def submit(self, request: GenerateRequest, sink: OutputSink) -> None:
        """Queue a request.

        Raises InvalidRequest for what can never be served, DuplicateRequestId, EngineDead. A full queue comes as the
        request's last Output.
        """
        ...

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it; its last Output comes through its sink.

        Nothing happens when it is not open.
        """
        ...

    def watch_steps(self, sink: StepStatsSink | None) -> None:
        """Show every step committed from now on to the sink, in order; None ends that.

        A step is shown before its outputs are. One sink a client: a later one takes the place of an earlier one. A call
        that has begun may end after this returns. A sink that raises is logged and goes on watching.
        """
        ...

    def load(self) -> LoadReport:
        """Say how busy the engine is."""
        ...

    def scheduler_state(self) -> SchedulerState:
        """Who waits, in order, and why."""
        ...

    def cache_state(self) -> CacheState:
        """The pool in numbers."""
        ...

    def check_integrity(self) -> list[str]:
        """Prove the ledger; returns what is wrong, nothing when all is well."""
        ...

    def flush_cache(self) -> int:
        """Forget every cached block that nobody holds; returns how many."""
        ...

    def warmup(self) -> float:
        """Have the runner compute the steps of a warm-up, so that no request pays for the first ones; returns seconds.

        Changes nothing: no token, no block, no count. Open requests wait meanwhile. Raises EngineDead, and what a step
        of that size raises (no memory for it, say); the engine then goes on.
        """
        ...

    def close(self) -> None:
        """End every open request with EngineDead and free everything; may be called more than once."""
        ...
