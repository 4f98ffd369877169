"""ProfilingClient: an EngineClient that records its steps and requests in a profile, for Perfetto.

Step times are durations on the engine's clock; request times are on this process's clock. The two clocks are aligned
when step stats arrive: the step ended no later than that. The smallest such delay counts, so that requests lag the
steps by the delay of the fastest message.
"""

import logging
import threading
import time
from os import PathLike

from chairlift.core.engine_output import EngineOutput
from chairlift.core.errors import ConfigError
from chairlift.core.file_writes import write_error_reason
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import GenerateRequest
from chairlift.engine.batch_snapshot import BatchSnapshot
from chairlift.engine.client.base import EngineClient, OutputSink, StepStatsSink
from chairlift.engine.client.creator_process import CreatorProcess
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.request_validation import ValidatedRequest
from chairlift.engine.runner.base import AdapterInfo, RunnerInfo
from chairlift.engine.scheduler_and_cache_state import CacheState, SchedulerState
from chairlift.engine.step_stats import StepStats
from chairlift.observability.perfetto_profile import PerfettoProfile, phases_of

log = logging.getLogger(__name__)


def open_profile(path: "str | PathLike[str]") -> PerfettoProfile:
    """Create the file of a profile. Raises ConfigError when the file cannot be written."""
    try:
        return PerfettoProfile(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {write_error_reason(error, path)}", option="profile") from None


class StepClock:
    """Milliseconds between the engine's clock and this process's, since this object's creation."""

    def __init__(self) -> None:
        self._zero = time.monotonic()
        self._shift: float | None = None
        self._least = 0.0
        self._last = (0.0, 0.0)  # end of the last step, by the engine's clock and here
        self._last_step = -1

    def now(self) -> float:
        """Return milliseconds on this process's clock."""
        return (time.monotonic() - self._zero) * 1e3

    def shift(self, stats: StepStats) -> float:
        """Return the offset for the times of a step received now; constant until the engine restarts."""
        ahead = self.now() - stats.ended_ms
        is_restarted = stats.step_id <= self._last_step or stats.ended_ms < self._last[0]
        if self._shift is None or is_restarted:
            self._shift = max(ahead, self._last[1] - stats.started_ms)
            self._least = ahead
        self._least = min(self._least, ahead)
        self._last, self._last_step = (stats.ended_ms, stats.ended_ms + self._shift), stats.step_id
        return self._shift

    def of_request(self, here: float) -> float:
        """Convert a time of this process to the time line of the steps."""
        return here + (0.0 if self._shift is None else self._shift - self._least)


class _SinkObserver:
    """Observes the outputs of one sink for all its open requests, so that it gets one list a step."""

    def __init__(self, sink: OutputSink, observe: OutputSink) -> None:
        self._sink, self._observe = sink, observe
        self.num_open = 0

    def __call__(self, outputs: list[EngineOutput]) -> None:
        try:
            self._observe(outputs)
        except Exception:
            log.exception("the profile failed")
        self._sink(outputs)


class ProfilingClient:
    """Forwards every call to another client and records its steps and requests in a profile."""

    def __init__(self, inner: EngineClient, profile: PerfettoProfile) -> None:
        """Watch the client's steps from now on; close() also closes the profile."""
        self._creator = CreatorProcess()
        self._inner = inner
        self._profile = profile
        self._clock = StepClock()
        self._lock = threading.Lock()
        self._observers: dict[int, _SinkObserver] = {}  # by id(sink); the observer keeps the sink alive
        self._submitted_at: dict[str, float] = {}
        self._first_output_at: dict[str, float] = {}  # arrival of a request's first output
        self._step_sink: StepStatsSink | None = None
        inner.watch_steps(self._on_step)

    @property
    def state(self) -> ReplicaState:
        """The engine's lifecycle state."""
        return self._inner.state

    @property
    def restarts(self) -> int:
        """Number of engine restarts."""
        return self._inner.restarts

    @property
    def is_hanging(self) -> bool:
        """Whether a step or a warm-up of the engine takes too long."""
        return self._inner.is_hanging

    @property
    def info(self) -> RunnerInfo:
        """The runner's information from its start."""
        return self._inner.info

    @property
    def limits(self) -> RequestLimits:
        """The limits that a request is validated against before it is queued."""
        return self._inner.limits

    def submit(self, request: GenerateRequest | ValidatedRequest, sink: OutputSink) -> None:
        """Queue a request; see EngineClient."""
        self._creator.check()
        with self._lock:
            observer = self._observers.setdefault(
                id(sink), _SinkObserver(sink, lambda outputs: self._on_outputs(id(sink), outputs))
            )
            observer.num_open += 1
            is_new = request.request_id not in self._submitted_at
            self._submitted_at.setdefault(request.request_id, self._clock.now())
        try:
            self._inner.submit(request, observer)
        except BaseException:
            self._release_observer(id(sink), 1)
            if is_new:
                self._submitted_at.pop(request.request_id, None)
            raise

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it; see EngineClient."""
        self._inner.abort(request_id, index)

    def watch_steps(self, sink: StepStatsSink | None) -> None:
        """Pass the stats of every step to one more sink; see EngineClient."""
        self._step_sink = sink

    def load(self) -> LoadReport:
        """Return the engine's load."""
        return self._inner.load()

    def scheduler_state(self) -> SchedulerState:
        """Return the waiting requests, in order and with the reason."""
        return self._inner.scheduler_state()

    def cache_state(self) -> CacheState:
        """Return the counts of the KV block pool."""
        return self._inner.cache_state()

    def batch_snapshot(self) -> BatchSnapshot:
        """Return every open sequence, the last steps and the block map."""
        return self._inner.batch_snapshot()

    def check_integrity(self) -> list[str]:
        """Check the engine's invariants."""
        return self._inner.check_integrity()

    def flush_cache(self) -> int:
        """Drop every cached block that no request holds."""
        return self._inner.flush_cache()

    def warmup(self) -> float:
        """Run the warm-up steps."""
        return self._inner.warmup()

    def load_adapter(self, number: int, folder: str) -> AdapterInfo:
        """Load a LoRA adapter."""
        return self._inner.load_adapter(number, folder)

    def drop_adapter(self, number: int) -> None:
        """Free a LoRA adapter."""
        self._inner.drop_adapter(number)

    def close(self) -> None:
        """Close the engine, then the profile. Does nothing in a fork."""
        if not self._creator.is_this:
            return
        self._inner.close()
        if (error := self._profile.close()) is not None:
            log.error("the profile could not be written to its end: %s", error)
        if self._profile.dropped:
            log.warning(
                "the profile lacks %d events: the disk was too slow, or they cannot be written as JSON",
                self._profile.dropped,
            )

    # -- engine thread ---------------------------------------------------------------------------------------------

    def _on_step(self, stats: StepStats) -> None:
        try:
            self._record_step(stats)
        except Exception:
            log.exception("the profile failed")
        if (sink := self._step_sink) is not None:
            sink(stats)

    def _record_step(self, stats: StepStats) -> None:
        shift = self._clock.shift(stats)
        started_at, collect = stats.started_ms + shift, stats.collect_started_ms + shift
        scheduled, collected = started_at + stats.schedule_ms, collect + stats.collect_ms
        ended = collected + stats.commit_ms
        phases = [
            (started_at, scheduled),
            (scheduled, scheduled + stats.launch_ms),
            (collect, collected),
            (collected, ended),
        ]
        self._profile.step(f"step {stats.step_id}", phases, {
            "step": stats.step_id, "rows": stats.num_sequences, "tokens": stats.num_tokens,
            "prefill tokens": stats.num_prefill_tokens, "context tokens": stats.context_tokens,
            "prefill pairs": stats.prefill_pairs, "outputs": stats.num_outputs,
        })  # fmt: skip
        self._profile.counters(ended, {
            "requests": {"running": stats.running, "waiting": stats.waiting},
            "free blocks": {"blocks": stats.free_blocks}, "unused slots": {"slots": stats.unused_kv_tokens},
        })  # fmt: skip

    def _on_outputs(self, sink: int, outputs: list[EngineOutput]) -> None:
        now = self._clock.now()
        for output in outputs:
            if output.request_id not in self._first_output_at:
                self._first_output_at[output.request_id] = now
        ended = [output for output in outputs if output.is_final]
        spans = [(self._submitted_at.pop(e.request_id, now), self._first_output_at.pop(e.request_id)) for e in ended]
        self._release_observer(sink, len(ended))
        for last, (since, first) in zip(ended, spans, strict=True):
            self._record_request(last, since, first, now)

    def _release_observer(self, sink: int, count: int) -> None:
        with self._lock:
            self._observers[sink].num_open -= count
            if self._observers[sink].num_open == 0:
                del self._observers[sink]

    def _record_request(self, last: EngineOutput, since: float, first: float, now: float) -> None:
        if last.timeline is None:
            phases, end = [("queued", since)], now
        else:
            known = [(event.name, event.at * 1e3) for event in last.timeline.events]
            named_phases, length = phases_of(known)
            first_token_at = next((at for name, at in known if name == "first_token"), length)
            queued = max(since, min(now - length, first - first_token_at))
            phases, end = [(name, queued + at) for name, at in named_phases], queued + length
        facts: dict[str, object] = {"finish_reason": str(last.finish_reason)}
        if last.error is not None:
            facts["error"] = last.error.code
        if last.usage is not None:
            facts |= {
                "prompt tokens": last.usage.prompt_tokens, "cached tokens": last.usage.cached_tokens,
                "output tokens": last.usage.completion_tokens,
            }  # fmt: skip
        aligned = [(name, self._clock.of_request(at)) for name, at in phases]
        self._profile.request(last.request_id, aligned, self._clock.of_request(end), facts)
