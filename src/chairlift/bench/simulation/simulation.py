"""simulate: runs the real scheduler, KV cache and engine loop on a fake clock with simulated step times."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any

from chairlift.bench.offline.request_records import RequestRecord, summarize_requests
from chairlift.bench.offline.step_recorder import StepRecorder
from chairlift.bench.report.percentiles import summarize
from chairlift.bench.simulation.sim_step_model import SMOL135_CPU, SimStepModel
from chairlift.bench.simulation.step_duration_sampler import StepDurationSampler
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.clock import FakeClock
from chairlift.core.engine_output import EngineOutput
from chairlift.core.errors import InvalidRequest
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.request_validation import ValidatedRequest, validate_request
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.step_stats import StepStats

VOCAB_SIZE = 49_152

TICK = 1e-3
"""Seconds that pass when requests wait but the scheduler launches nothing, as an idle loop would sleep."""

MAX_TICKS = 1_000_000
"""Number of consecutive ticks without a launch that means a deadlock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimMachine:
    """The machine that is simulated.

    Attributes:
        step_model: predicts the duration of a step.
        num_blocks: blocks of the KV cache; None for room for as many of the longest request as may run at once.
        block_size: tokens per block.
        enable_prefix_caching: whether full blocks are shared.
        seed: seed of the noise of the step times.

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
    """The results of a simulation; seconds are those of the fake clock, from the start.

    Attributes:
        records: a record of each request, in the order of the workload.
        queued: time at which each was submitted, which is the end of the step in which it arrived.
        first_scheduled: time at which each was first scheduled; None for those that never were.
        steps: stats of every step; their milliseconds are the fake clock's and all in collect_ms.
        step_seconds: duration of each step.
        step_ends: time at which each step ended.
        seconds: time at which the last request ended.
        host_seconds: real duration of the simulation.
        total_kv_tokens: capacity of the block pool in tokens.
        scheduled_tokens: tokens that were computed, including recomputed ones.
        preemptions: number of preemptions.
    """

    records: Sequence[RequestRecord]
    queued: Sequence[float]
    first_scheduled: Sequence[float | None]
    steps: Sequence[StepStats]
    step_seconds: Sequence[float]
    step_ends: Sequence[float]
    seconds: float
    host_seconds: float
    total_kv_tokens: int
    scheduled_tokens: int
    preemptions: int

    @property
    def waits(self) -> list[float]:
        """Seconds from each request's arrival until it was scheduled, without those that never were."""
        pairs = zip(self.records, self.first_scheduled, strict=True)
        return [scheduled_at - record.item.at for record, scheduled_at in pairs if scheduled_at is not None]

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that were in the prefix cache."""
        prompts = sum(len(record.item.prompt_token_ids) for record in self.records)
        return sum(record.cached_tokens for record in self.records) / max(1, prompts)

    @property
    def computed_again(self) -> float:
        """Recomputed tokens as a share of the needed ones; aborted and failed requests count, too."""
        useful = sum(
            len(record.item.prompt_token_ids) + record.output_tokens - 1 for record in self.records if record.stamps
        )
        cached = sum(record.cached_tokens for record in self.records)
        return max(0.0, self.scheduled_tokens / max(1, useful - cached) - 1)

    @property
    def num_running(self) -> list[int]:
        """Number of running sequences in each step."""
        return [max(step.running, step.num_sequences) for step in self.steps]

    @property
    def peak_running(self) -> int:
        """Largest number of sequences that ran at once."""
        return max(self.num_running, default=0)

    @property
    def mean_running(self) -> float:
        """Mean number of running sequences, over the time in which steps ran."""
        seconds = sum(self.step_seconds)
        return sum(map(mul, self.num_running, self.step_seconds)) / seconds if seconds else 0.0

    def report(self) -> dict[str, Any]:
        """Return the fields of a report; equal workload, settings and seed give equal fields, without host times."""
        on_output = StepRecorder(self.total_kv_tokens, clock=iter(self.step_ends).__next__)
        for step in self.steps:
            on_output(step)
        return {
            **summarize_requests(self.records, max(self.seconds, 1e-12)),
            **on_output.summarize(0.0),
            "one_step_seconds": summarize(self.step_seconds),
            "wait_seconds": {**summarize(self.waits), "max": max(self.waits, default=None)},
            "mean_running_requests": self.mean_running,
            "prefix_hit_rate": self.hit_rate,
            "computed_again": self.computed_again,
            "tenants": self._tenants(),
        }

    def _tenants(self) -> dict[str, Any]:
        names = sorted({record.item.tenant for record in self.records})
        if names == [""]:
            return {}
        records = {name: [record for record in self.records if record.item.tenant == name] for name in names}
        metrics = ("latency_seconds", "ttft_seconds", "requests", "tokens")
        sums = {name: summarize_requests(records[name], max(self.seconds, 1e-12)) for name in names}
        return {name: {key: sums[name][key] for key in metrics} for name in names}


def max_request_tokens(workload: Workload) -> int:
    """Return the tokens of the longest request, prompt and output."""
    return max(len(item.prompt_token_ids) + item.output_tokens for item in workload.items)


def simulate(
    workload: Workload, config: SchedulerConfig, machine: SimMachine | None = None, *,
    on_output: Callable[[float, int, int], None] | None = None,
) -> SimResult:  # fmt: skip
    """Simulate a workload with greedy sampling, each request to its full length.

    The clock of an idle engine jumps to the next arrival. `on_output(now, index, tokens)` is called for each output
    after a step. A request that fails during the run is counted and raises nothing.

    Raises InvalidRequest, before anything runs, when a request can never be served; the message names it.
    """
    return _SimulationRun(workload, config, machine or SimMachine(), on_output).run_to_end()


def as_request(item: WorkloadRequest, index: int) -> GenerateRequest:
    """Return the engine request for the index-th request of a workload; its id is the index.

    Structured output is left out: a simulation has no tokenizer, and every output is as long as the workload says.
    """
    params = SamplingParams(temperature=0.0, max_tokens=item.output_tokens, ignore_eos=True, seed=0)
    return GenerateRequest(
        request_id=str(index), prompt_token_ids=item.prompt_token_ids,
        params=params.with_defaults({}, max_tokens=item.output_tokens, seed=0), priority=item.priority,
        tenant=item.tenant, timeout=item.timeout,
    )  # fmt: skip


class _SimulationRun:
    """The state of a running simulation."""

    def __init__(
        self, workload: Workload, config: SchedulerConfig, machine: SimMachine,
        on_output: Callable[[float, int, int], None] | None,
    ) -> None:  # fmt: skip
        self._items, self._on_output = workload.items, on_output
        self._clock = FakeClock()
        length = config.max_model_len or max_request_tokens(workload) + 1
        max_num_blocks = config.max_running_sequences * -(-max_request_tokens(workload) // machine.block_size)
        self._fake = FakeConfig(
            vocab_size=1 + max(VOCAB_SIZE - 1, *(max(item.prompt_token_ids) for item in workload.items)),
            max_model_len=length, num_blocks=machine.num_blocks or max_num_blocks, block_size=machine.block_size,
            verify=False,
        )  # fmt: skip
        self._step_timer = StepDurationSampler(machine.step_model, machine.seed)
        self._step_seconds: list[float] = []
        self._step_ends: list[float] = []
        self._steps: list[StepStats] = []
        runner = FakeRunner(self._fake, clock=self._clock, step_time=self._time_step)
        self._loop = EngineLoop(
            runner, config, enable_prefix_caching=machine.enable_prefix_caching, clock=self._clock,
            on_step=self._record_step, threaded=False,
        )  # fmt: skip
        self._records = [RequestRecord(item) for item in self._items]
        self._queued = [0.0] * len(self._items)
        self._first_scheduled: list[float | None] = [None] * len(self._items)
        self._next = 0

    def _time_step(self, plan: StepPlan) -> float:
        self._step_seconds.append(seconds := self._step_timer(plan))
        return seconds

    def _record_step(self, stats: StepStats) -> None:
        seconds = self._step_seconds[len(self._steps)]
        self._steps.append(replace(stats, schedule_ms=0.0, launch_ms=0.0, collect_ms=seconds * 1e3, commit_ms=0.0))
        self._step_ends.append(self._clock.now())

    def run_to_end(self) -> SimResult:
        started_at = time.perf_counter()
        self._loop.start()
        requests = self._validated_requests()
        loop, clock, ticks = self._loop, self._clock, 0
        while self._next < len(requests) or not loop.is_idle:
            self._submit_due_requests(requests)
            before = (clock.now(), self._loop.scheduler.counters.steps)
            outputs = loop.step()
            for output in outputs:
                self._handle_output(output, clock.now())
            if outputs or before != (clock.now(), self._loop.scheduler.counters.steps):
                ticks = 0
                continue
            ticks += 1
            assert ticks < MAX_TICKS, f"{len(loop.scheduler.waiting)} requests wait and nothing is launched"
            self._advance_clock()
        counters = loop.scheduler.counters
        loop.stop()
        return SimResult(
            records=self._records, queued=self._queued, first_scheduled=self._first_scheduled, steps=self._steps,
            step_seconds=self._step_seconds, step_ends=self._step_ends,
            total_kv_tokens=self._fake.num_blocks * self._fake.block_size,
            seconds=max((record.ended or 0.0 for record in self._records), default=0.0),
            host_seconds=time.perf_counter() - started_at, scheduled_tokens=counters.scheduled_tokens,
            preemptions=counters.preemptions,
        )  # fmt: skip

    def _validated_requests(self) -> list[ValidatedRequest]:
        requests = []
        for index, item in enumerate(self._items):
            try:
                requests.append(validate_request(as_request(item, index), self._loop.limits))
            except InvalidRequest as error:
                raise InvalidRequest(f"request {index} of the workload: {error.message}", **error.details) from None
        return requests

    def _submit_due_requests(self, requests: Sequence[ValidatedRequest]) -> None:
        now = self._clock.now()
        while self._next < len(requests) and self._items[self._next].at <= now:
            self._queued[self._next] = now
            for output in self._loop.submit(requests[self._next]):
                self._handle_output(output, now)
            self._next += 1

    def _advance_clock(self) -> None:
        """Advance the clock to the next arrival, but at most by TICK while a request waits."""
        now = self._clock.now()
        pause = self._items[self._next].at - now if self._next < len(self._items) else TICK
        self._clock.advance(pause if self._loop.is_idle else min(pause, TICK))

    def _handle_output(self, output: EngineOutput, now: float) -> None:
        index = int(output.request_id)
        record = self._records[index]
        if output.token_ids:
            record.stamps.append(now)
            record.output_tokens += len(output.token_ids)
        if self._on_output is not None:
            self._on_output(now, index, len(output.token_ids))
        if not output.is_final:
            return
        record.ended = now
        record.error = "" if output.error is None else output.error.code
        record.cached_tokens = 0 if output.usage is None else output.usage.cached_tokens
        events = () if output.timeline is None else output.timeline.events
        since = next((event.at for event in events if event.name == "scheduled"), None)
        self._first_scheduled[index] = None if since is None else self._queued[index] + since
