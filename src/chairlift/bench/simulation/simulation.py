"""simulate: the real scheduler, cache and loop under a fake clock; only the model's time is made up."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any

from chairlift.bench.offline.request_records import RequestRecord, summarize_requests
from chairlift.bench.offline.step_records import StepRecorder
from chairlift.bench.report.percentiles import summarize
from chairlift.bench.simulation.sim_step_model import SMOL135_CPU, SimStepModel, StepTimer
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.clock import FakeClock
from chairlift.core.errors import InvalidRequest
from chairlift.core.request import EngineOutput, GenerateRequest
from chairlift.core.sampling import SamplingParams
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.request_limits import validate_request
from chairlift.engine.runner.fake import FakeConfig, FakeRunner
from chairlift.engine.stats import StepStats
from chairlift.engine.step_plan import StepPlan

VOCAB_SIZE = 49_152

TICK = 1e-3
"""Seconds that pass when the scheduler has nothing to launch though requests wait, as an idle loop would sleep."""

MAX_TICKS = 1_000_000
"""So many in a row mean that it will never launch again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimMachine:
    """What the scheduler is told it runs on.

    Attributes:
        step_model: how long a step takes.
        num_blocks: pages of the KV cache; None is room for every seat to be taken by the workload's longest request.
        block_size: tokens in a page.
        enable_prefix_caching: whether full blocks are shared.
        seed: of the noise in the step times.

    Raises ConfigError when num_blocks or block_size is less than 1.
    """

    step_model: SimStepModel = SMOL135_CPU
    num_blocks: int | None = None
    block_size: int = 16
    enable_prefix_caching: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        CacheConfig(num_blocks=1 if self.num_blocks is None else self.num_blocks, block_size=self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """What happened; all seconds are those of the fake clock, from the start.

    Attributes:
        rides: one a request, in the order of the workload.
        queued: when each was put in line, which is when a step had ended after its arrival.
        boarded: when each rode for the first time; None for those that never did.
        steps: every step in numbers; its milliseconds are the fake clock's and all in collect_ms.
        step_seconds: how long each of them took.
        step_ends: when each ended.
        seconds: until the last request had ended.
        host_seconds: that the simulation itself took.
        total_slots: token slots in the pool.
        scheduled_tokens: tokens that were computed, those computed again after a preemption included.
        preemptions: how often somebody was sent back to the line.
    """

    rides: Sequence[RequestRecord]
    queued: Sequence[float]
    first_scheduled: Sequence[float | None]
    steps: Sequence[StepStats]
    step_seconds: Sequence[float]
    step_ends: Sequence[float]
    seconds: float
    host_seconds: float
    total_slots: int
    scheduled_tokens: int
    preemptions: int

    @property
    def waits(self) -> list[float]:
        """Seconds from the arrival of each request to its first ride; those that never rode are left out."""
        rode = zip(self.rides, self.first_scheduled, strict=True)
        return [boarded - ride.item.at for ride, boarded in rode if boarded is not None]

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that came from the prefix cache."""
        prompts = sum(len(ride.item.prompt_token_ids) for ride in self.rides)
        return sum(ride.cached_tokens for ride in self.rides) / max(1, prompts)

    @property
    def computed_again(self) -> float:
        """Tokens computed beyond what the requests needed once, as a share of that; aborted and failed ones count."""
        useful = sum(len(ride.item.prompt_token_ids) + ride.output_tokens - 1 for ride in self.rides if ride.stamps)
        cached = sum(ride.cached_tokens for ride in self.rides)
        return max(0.0, self.scheduled_tokens / max(1, useful - cached) - 1)

    @property
    def riding(self) -> list[int]:
        """Requests on board in each step."""
        return [max(step.running, step.num_sequences) for step in self.steps]

    @property
    def peak_running(self) -> int:
        """Most requests that were on board at once."""
        return max(self.riding, default=0)

    @property
    def mean_running(self) -> float:
        """Requests on board, averaged over the time in which steps ran."""
        seconds = sum(self.step_seconds)
        return sum(map(mul, self.riding, self.step_seconds)) / seconds if seconds else 0.0

    def report(self) -> dict[str, Any]:
        """Return what a report says, the same for the same workload, settings and seed: nothing of the host's time."""
        watch = StepRecorder(self.total_slots, clock=iter(self.step_ends).__next__)
        for step in self.steps:
            watch(step)
        return {
            **summarize_requests(self.rides, max(self.seconds, 1e-12)),
            **watch.summarize(0.0),
            "one_step_seconds": summarize(self.step_seconds),
            "wait_seconds": {**summarize(self.waits), "max": max(self.waits, default=None)},
            "mean_running_requests": self.mean_running,
            "prefix_hit_rate": self.hit_rate,
            "computed_again": self.computed_again,
            "tenants": self._tenants(),
        }

    def _tenants(self) -> dict[str, Any]:
        names = sorted({ride.item.tenant for ride in self.rides})
        if names == [""]:
            return {}
        rides = {name: [ride for ride in self.rides if ride.item.tenant == name] for name in names}
        kept = ("latency_seconds", "ttft_seconds", "requests", "tokens")
        sums = {name: summarize_requests(rides[name], max(self.seconds, 1e-12)) for name in names}
        return {name: {key: sums[name][key] for key in kept} for name in names}


def longest(workload: Workload) -> int:
    """Tokens of the longest request, prompt and output."""
    return max(len(item.prompt_token_ids) + item.output_tokens for item in workload.items)


def simulate(
    workload: Workload, config: SchedulerConfig, machine: SimMachine | None = None, *,
    watch: Callable[[float, int, int], None] | None = None,
) -> SimResult:  # fmt: skip
    """Run a workload, greedy, each request to its full length; an idle engine jumps to the next arrival.

    `watch(now, index, tokens)` hears of every request that had news after a step. Raises InvalidRequest naming the
    request when one can never be served, before anything runs. A request that fails later is counted, not raised.
    """
    return _Run(workload, config, machine or SimMachine(), watch).to_the_end()


def as_request(item: WorkloadRequest, index: int) -> GenerateRequest:
    """Turn the index-th request of a workload into one of the engine's, which is known by its index.

    A structure is left out: a simulation has no tokenizer, and every output is as long as the workload says.
    """
    params = SamplingParams(temperature=0.0, max_tokens=item.output_tokens, ignore_eos=True, seed=0)
    return GenerateRequest(
        request_id=str(index), prompt_token_ids=item.prompt_token_ids,
        params=params.with_defaults({}, max_tokens=item.output_tokens, seed=0), priority=item.priority,
        tenant=item.tenant, timeout=item.timeout,
    )  # fmt: skip


class _Run:
    """A simulation while it goes on."""

    def __init__(
        self, workload: Workload, config: SchedulerConfig, machine: SimMachine,
        watch: Callable[[float, int, int], None] | None,
    ) -> None:  # fmt: skip
        self._items, self._watch = workload.items, watch
        self._clock = FakeClock()
        length = config.max_model_len or longest(workload) + 1
        pages = config.max_running_sequences * -(-longest(workload) // machine.block_size)
        self._fake = FakeConfig(
            vocab_size=1 + max(VOCAB_SIZE - 1, *(max(item.prompt_token_ids) for item in workload.items)),
            max_model_len=length, num_blocks=machine.num_blocks or pages, block_size=machine.block_size, verify=False,
        )  # fmt: skip
        self._stopwatch = StepTimer(machine.step_model, machine.seed)
        self._step_seconds: list[float] = []
        self._step_ends: list[float] = []
        self._steps: list[StepStats] = []
        runner = FakeRunner(self._fake, clock=self._clock, step_time=self._timed)
        self._loop = EngineLoop(
            runner, config, enable_prefix_caching=machine.enable_prefix_caching, clock=self._clock,
            on_step=self._stepped, threaded=False,
        )  # fmt: skip
        self._rides = [RequestRecord(item) for item in self._items]
        self._queued = [0.0] * len(self._items)
        self._boarded: list[float | None] = [None] * len(self._items)
        self._next = 0

    def _timed(self, plan: StepPlan) -> float:
        self._step_seconds.append(seconds := self._stopwatch(plan))
        return seconds

    def _stepped(self, stats: StepStats) -> None:
        seconds = self._step_seconds[len(self._steps)]
        self._steps.append(replace(stats, schedule_ms=0.0, launch_ms=0.0, collect_ms=seconds * 1e3, commit_ms=0.0))
        self._step_ends.append(self._clock.now())

    def to_the_end(self) -> SimResult:
        began = time.perf_counter()
        self._loop.start()
        requests = self._checked()
        loop, clock, ticks = self._loop, self._clock, 0
        while self._next < len(requests) or not loop.is_idle:
            self._submit_what_is_due(requests)
            before = (clock.now(), self._loop.scheduler.counters.steps)
            outputs = loop.step()
            for output in outputs:
                self._take(output, clock.now())
            if outputs or before != (clock.now(), self._loop.scheduler.counters.steps):
                ticks = 0
                continue
            ticks += 1
            assert ticks < MAX_TICKS, f"{len(loop.scheduler.waiting)} requests wait and nothing is launched"
            self._let_time_pass()
        counters = loop.scheduler.counters
        loop.stop()
        return SimResult(
            rides=self._rides, queued=self._queued, first_scheduled=self._boarded, steps=self._steps,
            step_seconds=self._step_seconds, step_ends=self._step_ends,
            total_slots=self._fake.num_blocks * self._fake.block_size,
            seconds=max((ride.ended or 0.0 for ride in self._rides), default=0.0),
            host_seconds=time.perf_counter() - began, scheduled_tokens=counters.scheduled_tokens,
            preemptions=counters.preemptions,
        )  # fmt: skip

    def _checked(self) -> list[GenerateRequest]:
        requests = []
        for index, item in enumerate(self._items):
            request = as_request(item, index)
            try:
                validate_request(request, self._loop.limits)
            except InvalidRequest as error:
                raise InvalidRequest(f"request {index} of the workload: {error.message}", **error.details) from None
            requests.append(request)
        return requests

    def _submit_what_is_due(self, requests: Sequence[GenerateRequest]) -> None:
        now = self._clock.now()
        while self._next < len(requests) and self._items[self._next].at <= now:
            self._queued[self._next] = now
            for output in self._loop.submit(requests[self._next]):
                self._take(output, now)
            self._next += 1

    def _let_time_pass(self) -> None:
        """Sleep until the next arrival; when somebody waits, not longer than a tick."""
        now = self._clock.now()
        pause = self._items[self._next].at - now if self._next < len(self._items) else TICK
        self._clock.advance(pause if self._loop.is_idle else min(pause, TICK))

    def _take(self, output: EngineOutput, now: float) -> None:
        index = int(output.request_id)
        ride = self._rides[index]
        if output.token_ids:
            ride.stamps.append(now)
            ride.output_tokens += len(output.token_ids)
        if self._watch is not None:
            self._watch(now, index, len(output.token_ids))
        if not output.is_final:
            return
        ride.ended = now
        ride.error = "" if output.error is None else output.error.code
        ride.cached_tokens = 0 if output.usage is None else output.usage.cached_tokens
        events = () if output.timeline is None else output.timeline.events
        since = next((event.at for event in events if event.name == "scheduled"), None)
        self._boarded[index] = None if since is None else self._queued[index] + since
