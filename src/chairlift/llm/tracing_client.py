"""ProfiledClient: an EngineClient that writes down, for Perfetto, what passes through it.

The engine's steps come on its own clock, as durations since its start; requests are seen on the clock of this process.
The two are joined where a step is shown: it ended no later than that. The soonest such sight of all counts, so that
requests are as late against the steps as the quickest message was on its way.
"""

import logging
import threading
import time
from os import PathLike

from chairlift.core.errors import ConfigError
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import EngineOutput, GenerateRequest
from chairlift.engine.client.base import EngineClient, OutputSink, StepStatsSink
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.stats import CacheState, SchedulerState, StepStats
from chairlift.observability.trace import Trace, life

log = logging.getLogger(__name__)


def open_trace(path: "str | PathLike[str]") -> Trace:
    """Create a trace file. Raises ConfigError when that cannot be."""
    try:
        return Trace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}", option="profile") from None


class StepClock:
    """Where the engine's clock stands against this process's; milliseconds, zero is when this was made."""

    def __init__(self) -> None:
        self._zero = time.monotonic()
        self._shift: float | None = None
        self._least = 0.0
        self._last = (0.0, 0.0)  # end of the last step, by the engine's clock and here
        self._last_step = -1

    def now(self) -> float:
        """This process's clock."""
        return (time.monotonic() - self._zero) * 1e3

    def shift(self, stats: StepStats) -> float:
        """Return what is to be added to the moments of a step that is seen now; constant in an engine's life."""
        ahead = self.now() - stats.ended_ms
        is_new_life = stats.step_id <= self._last_step or stats.ended_ms < self._last[0]
        if self._shift is None or is_new_life:
            self._shift = max(ahead, self._last[1] - stats.started_ms)
            self._least = ahead
        self._least = min(self._least, ahead)
        self._last, self._last_step = (stats.ended_ms, stats.ended_ms + self._shift), stats.step_id
        return self._shift

    def of_request(self, here: float) -> float:
        """Put a moment of this process between the steps."""
        return here + (0.0 if self._shift is None else self._shift - self._least)


class _Tap:
    """Looks at the news of one sink before it does; one for all its open requests, so that it gets one list a step."""

    def __init__(self, sink: OutputSink, look: OutputSink) -> None:
        self._sink, self._look = sink, look
        self.num_open = 0

    def __call__(self, outputs: list[EngineOutput]) -> None:
        try:
            self._look(outputs)
        except Exception:
            log.exception("the profile failed")
        self._sink(outputs)


class ProfiledClient:
    """Passes everything on to a client, and traces its steps and the requests that go through here."""

    def __init__(self, inner: EngineClient, trace: Trace) -> None:
        """Watch the client's steps from now on; the trace is closed with this client."""
        self._inner = inner
        self._trace = trace
        self._clock = StepClock()
        self._lock = threading.Lock()
        self._taps: dict[int, _Tap] = {}  # by id(sink), which its tap keeps alive
        self._since: dict[str, float] = {}
        self._first: dict[str, float] = {}  # when the first news of a request came
        self._step_sink: StepStatsSink | None = None
        inner.watch_steps(self._stepped)

    @property
    def state(self) -> ReplicaState:
        """Where the engine is in its life."""
        return self._inner.state

    @property
    def restarts(self) -> int:
        """How often the engine was started again."""
        return self._inner.restarts

    @property
    def info(self) -> RunnerInfo:
        """What the runner said when it started."""
        return self._inner.info

    @property
    def limits(self) -> RequestLimits:
        """What a request is held against before it is queued."""
        return self._inner.limits

    def submit(self, request: GenerateRequest, sink: OutputSink) -> None:
        """Queue a request; see EngineClient."""
        with self._lock:
            tap = self._taps.setdefault(id(sink), _Tap(sink, lambda outputs: self._news(id(sink), outputs)))
            tap.num_open += 1
            is_new = request.request_id not in self._since
            self._since.setdefault(request.request_id, self._clock.now())
        try:
            self._inner.submit(request, tap)
        except BaseException:
            self._let_go(id(sink), 1)
            if is_new:
                self._since.pop(request.request_id, None)
            raise

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it; see EngineClient."""
        self._inner.abort(request_id, index)

    def watch_steps(self, sink: StepStatsSink | None) -> None:
        """Show every step to one more sink; see EngineClient."""
        self._step_sink = sink

    def load(self) -> LoadReport:
        """Say how busy the engine is."""
        return self._inner.load()

    def scheduler_state(self) -> SchedulerState:
        """Who waits, in order, and why."""
        return self._inner.scheduler_state()

    def cache_state(self) -> CacheState:
        """The pool in numbers."""
        return self._inner.cache_state()

    def check_integrity(self) -> list[str]:
        """Prove the ledger."""
        return self._inner.check_integrity()

    def flush_cache(self) -> int:
        """Forget every cached block that nobody holds."""
        return self._inner.flush_cache()

    def warmup(self) -> float:
        """Have the runner compute the steps of a warm-up."""
        return self._inner.warmup()

    def close(self) -> None:
        """Close the engine, then the trace."""
        self._inner.close()
        if (fault := self._trace.close()) is not None:
            log.error("the profile could not be written to its end: %s", fault)
        if self._trace.dropped:
            log.warning("the profile lacks %d events: the disk was too slow, or they are no JSON", self._trace.dropped)

    # -- the engine's thread ---------------------------------------------------------------------------------------

    def _stepped(self, stats: StepStats) -> None:
        try:
            self._draw(stats)
        except Exception:
            log.exception("the profile failed")
        if (sink := self._step_sink) is not None:
            sink(stats)

    def _draw(self, stats: StepStats) -> None:
        shift = self._clock.shift(stats)
        began, collect = stats.started_ms + shift, stats.collect_started_ms + shift
        scheduled, collected = began + stats.schedule_ms, collect + stats.collect_ms
        ended = collected + stats.commit_ms
        phases = [
            (began, scheduled),
            (scheduled, scheduled + stats.launch_ms),
            (collect, collected),
            (collected, ended),
        ]
        self._trace.step(f"step {stats.step_id}", phases, {
            "step": stats.step_id, "rows": stats.num_sequences, "tokens": stats.num_tokens,
            "prefill tokens": stats.num_prefill_tokens, "context tokens": stats.context_tokens,
            "prefill pairs": stats.prefill_pairs, "outputs": stats.num_outputs,
        })  # fmt: skip
        self._trace.counters(ended, {
            "requests": {"running": stats.running, "waiting": stats.waiting},
            "free blocks": {"blocks": stats.free_blocks}, "unused slots": {"slots": stats.unused_kv_tokens},
        })  # fmt: skip

    def _news(self, sink: int, outputs: list[EngineOutput]) -> None:
        now = self._clock.now()
        for output in outputs:
            if output.request_id not in self._first:
                self._first[output.request_id] = now
        ended = [output for output in outputs if output.is_final]
        spans = [(self._since.pop(last.request_id, now), self._first.pop(last.request_id)) for last in ended]
        self._let_go(sink, len(ended))
        for last, (since, first) in zip(ended, spans, strict=True):
            self._ended(last, since, first, now)

    def _let_go(self, sink: int, count: int) -> None:
        with self._lock:
            self._taps[sink].num_open -= count
            if self._taps[sink].num_open == 0:
                del self._taps[sink]

    def _ended(self, last: EngineOutput, since: float, first: float, now: float) -> None:
        if last.timeline is None:
            phases, end = [("queued", since)], now
        else:
            known = [(event.name, event.at * 1e3) for event in last.timeline.events]
            moments, length = life(known)
            told = next((at for name, at in known if name == "first_token"), length)
            queued = max(since, min(now - length, first - told))
            phases, end = [(name, queued + at) for name, at in moments], queued + length
        facts: dict[str, object] = {"finish_reason": str(last.finish_reason)}
        if last.error is not None:
            facts["error"] = last.error.code
        if last.usage is not None:
            facts |= {
                "prompt tokens": last.usage.prompt_tokens, "cached tokens": last.usage.cached_tokens,
                "output tokens": last.usage.completion_tokens,
            }  # fmt: skip
        placed = [(name, self._clock.of_request(at)) for name, at in phases]
        self._trace.request(last.request_id, placed, self._clock.of_request(end), facts)
